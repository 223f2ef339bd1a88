"""The engine, told as stories on the fake database; random schedules are in tests/property."""

import dataclasses

import pytest
from support.engine_driver import Request, Shell, commit
from support.fake_database import FakeDatabase

from coordinator.consumer.saving import all_unsaved, check_ack, check_committed
from coordinator.core.loop import Exchange, Limits, Wait
from coordinator.errors import StaleEpochError
from coordinator.model import PartitionKey

KEY = PartitionKey(1, 1, 0)


@pytest.fixture
def database():
    return FakeDatabase({1: 1}, {1: [1]})


@pytest.fixture
def shell(database):
    made = Shell(database, ordering="partition")
    made.claim_all()
    return made


def owned(shell):
    return shell.engine.partitions[KEY]


def test_engine__messages_published__are_handed_over_in_order_and_committed(shell, database):
    database.published(1, 0, count=5)
    shell.until_waiting()
    assert shell.handle(10) == [0, 1, 2, 3, 4]
    shell.pass_time(0.1)
    assert database.claims[KEY].newest.committed == 5
    assert shell.engine.idle


def test_engine__window_not_committed__hands_over_nothing(shell, database):
    database.published(1, 0, count=5)
    command = shell.until_exchange()
    assert shell.take() == []
    shell.answer(command)
    assert shell.take() == [0]


def test_engine__one_in_flight__starts_no_other_of_the_partition(shell, database):
    database.published(1, 0, count=5)
    shell.until_waiting()
    assert shell.take() == [0]
    assert shell.take() == []


def test_engine__lease_run_out__starts_nothing(shell, database):
    database.published(1, 0)
    shell.until_waiting()
    shell.engine.on_lease(5.0)
    shell.now_s = 5.0
    assert shell.take() == []
    shell.engine.on_lease(15.0)
    assert shell.take() == [0]


def test_engine__deadline_passed__hands_over_again_as_the_next_attempt(shell, database):
    database.published(1, 0, count=2)
    shell.until_waiting()
    first = shell.start()[0]
    shell.pass_time(30.0)
    second = shell.start()[0]
    assert (first.offset, second.offset, first.attempt, second.attempt) == (0, 0, 1, 2)


def test_ack__of_an_earlier_delivery_while_the_message_is_ready_again__settles_it(shell, database):
    database.published(1, 0, count=2)
    shell.until_waiting()
    late = shell.start()[0]
    shell.pass_time(30.0)
    shell.ack(late)
    shell.pass_time(0.1)
    assert shell.handle(9) == [1]
    shell.pass_time(0.1)
    assert (database.claims[KEY].newest.committed, database.claims[KEY].retries) == (2, {})


def test_ack__of_an_earlier_delivery_while_a_second_runs__makes_the_ack_of_the_second_a_no_op(shell, database):
    database.published(1, 0, count=2)
    shell.until_waiting()
    late = shell.start()[0]
    shell.pass_time(30.0)
    second = shell.start()[0]
    shell.ack(late)
    shell.ack(second)
    shell.pass_time(0.1)
    assert shell.handle(9) == [1]
    shell.pass_time(0.1)
    assert (database.claims[KEY].newest.committed, database.claims[KEY].retries) == (2, {})


def test_nack_and_extend__of_a_delivery_past_its_deadline__change_nothing(shell, database):
    database.published(1, 0)
    shell.until_waiting()
    late = shell.start()[0]
    shell.pass_time(30.0)
    shell.start()
    shell.nack(late)
    assert not shell.engine.extend(late.delivery, shell.now_s + 60, shell.now_s)
    assert shell.take() == []


def test_extend__before_the_deadline__keeps_the_delivery_in_flight(shell, database):
    database.published(1, 0)
    shell.until_waiting()
    message = shell.start()[0]
    assert shell.engine.extend(message.delivery, shell.now_s + 60, shell.now_s)
    shell.pass_time(59.0)
    assert shell.take() == []
    shell.pass_time(1.0)
    assert shell.take() == [0]


def test_ack__after_the_claim_was_taken_over__raises_stale_epoch(shell, database):
    database.published(1, 0)
    shell.until_waiting()
    message = shell.start()[0]
    shell.engine.drop([KEY])
    with pytest.raises(StaleEpochError):
        shell.ack(message)
    with pytest.raises(StaleEpochError):
        shell.nack(message)
    with pytest.raises(StaleEpochError):
        shell.engine.extend(message.delivery, 99.0, shell.now_s)


def test_exchange__fenced__drops_the_claim(shell, database):
    database.published(1, 0, count=2)
    shell.until_waiting()
    shell.handle(1)
    database.coordinators[shell.id].state = "dead"
    other = Shell(database, 2, ordering="partition")
    other.claim_all()
    command = shell.until_exchange()
    changes = shell.answer(command)
    assert [partition.key for partition in changes.lost] == [KEY]
    assert shell.engine.partitions == {}


def test_revoke__nothing_in_flight__releases_with_the_last_ack(shell, database):
    database.published(1, 0, count=5)
    shell.until_waiting()
    message = shell.start()[0]
    shell.engine.revoke([KEY])
    shell.pass_time(1.0)
    assert shell.take() == []
    assert database.claims[KEY].owner == shell.id
    shell.ack(message)
    shell.pass_time(0.1)
    newest = database.claims[KEY].newest
    assert (database.claims[KEY].owner, newest.committed, newest.hwm) == (None, 1, 1)


def test_abandon__in_flight__is_given_back_and_released(shell, database):
    database.published(1, 0, count=5)
    shell.until_waiting()
    shell.take()
    assert shell.engine.abandon(shell.subscriptions) == 1
    shell.until_waiting()
    assert database.claims[KEY].owner is None
    assert database.claims[KEY].newest.committed == 0


def test_gap__still_open__stops_the_reader_and_its_rows_come_first(shell, database):
    open_ = database.begin()
    database.publish(open_, 1, 0)
    database.published(1, 0, count=2)
    shell.pass_time(0.2)
    assert shell.take() == []
    database.end(open_, commit=True)
    shell.pass_time(0.2)
    assert shell.handle(5) == [0, 1, 2]


def test_gap__rolled_back__is_passed_and_committed(shell, database):
    open_ = database.begin()
    database.publish(open_, 1, 0)
    database.published(1, 0, count=2)
    shell.pass_time(0.2)
    database.end(open_, commit=False)
    shell.pass_time(0.2)
    assert shell.handle(5) == [1, 2]
    shell.pass_time(0.2)
    assert database.claims[KEY].newest.committed == 3


def test_gap__burnt_tail__ends_the_lag(shell, database):
    rolled_back = database.begin()
    for _ in range(3):
        database.publish(rolled_back, 1, 0)
    database.end(rolled_back, commit=False)
    shell.pass_time(2.0)
    assert database.claims[KEY].newest.committed == 3
    assert shell.engine.idle


def test_idle_engine__polls_ever_more_rarely(shell):
    exchanges = shell.engine.exchange_count
    shell.pass_time(60.0)
    assert shell.engine.exchange_count - exchanges < 75


def test_acks__within_the_linger_time__share_an_exchange(database):
    shell = Shell(database, ordering="partition", limits=Limits(linger_s=0.01))
    shell.claim_all()
    database.published(1, 0, count=20)
    shell.until_waiting()
    seq = database.claims[KEY].newest.seq
    shell.handle(20)
    shell.pass_time(0.1)
    assert database.claims[KEY].newest.committed == 20
    assert database.claims[KEY].newest.seq == seq + 1


@pytest.mark.parametrize(("took_s", "waits_s"), [(0.001, 0.01), (0.02, 0.04), (0.3, 0.2)])
def test_acks__while_exchanges_take_long__wait_longer_for_company_within_bounds(shell, database, took_s, waits_s):
    database.published(1, 0, count=3)
    command = shell.until_exchange()
    shell.now_s += took_s
    shell.answer(command)
    shell.take()
    shell.engine.ack(next(iter(owned(shell).in_flight.values())), shell.now_s)
    waiting = shell.engine.next_command(shell.now_s)
    assert isinstance(waiting, Wait)
    assert waiting.until_s == pytest.approx(shell.now_s + waits_s)


def test_answer_lost_after_commit__window_is_read_again(shell, database):
    database.published(1, 0, count=5)
    shell.lose_answer(committed=True)
    assert database.claims[KEY].newest.hwm == 5
    shell.until_waiting()
    assert shell.handle(9) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("committed", [True, False])
def test_answer_lost__acks_pending__are_not_delivered_again(shell, database, committed):
    """I5. The exchange that reads [committed, hwm) again also carries acks; their offsets are not in its rows."""
    database.published(1, 0, count=10)
    shell.until_waiting()
    shell.handle(3)
    running = shell.start(2)
    shell.lose_answer(committed=committed)
    shell.step()  # Resolve
    for message in running:
        shell.ack(message)
    shell.pass_time(1.0)
    assert shell.handle(20) == [5, 6, 7, 8, 9]


def test_answer_lost__gap_unresolved__nothing_above_it_starts(shell, database):
    """I10. The gap is forgotten in recover, and an ack that arrives before the re-read starts what is above it."""
    database.published(1, 0, count=1)
    open_ = database.begin()
    database.publish(open_, 1, 0)
    database.published(1, 0, count=2)
    shell.pass_time(0.1)
    message = shell.start()[0]
    shell.lose_answer(committed=False)
    shell.step()  # Resolve
    shell.ack(message)
    assert shell.take() == []


def test_take__messages_gathered_slowly_without_acks__come_until_max_in_flight():
    database = FakeDatabase({1: 1}, {1: [1]})
    database.published(1, 0, count=600)
    shell = Shell(database, ordering="none", limits=Limits(max_window=64, max_in_flight=500))
    shell.claim_all()
    held = []
    for _ in range(40):
        shell.until_waiting()
        held += shell.take(20)
        shell.pass_time(0.5)
    assert held == list(range(500))


def test_take__two_topics__a_busy_one_does_not_starve_the_other():
    """Design 4.3: ready work is taken fairly across partitions, so that a hot one starves nobody."""
    database = FakeDatabase({1: 1, 2: 1}, {1: [1, 2]})
    shell = Shell(database, ordering="partition")
    shell.claim_all()
    database.published(1, 0, count=100)
    database.published(2, 0, count=1)
    shell.until_waiting()
    topics = []
    for _ in range(10):
        for message in shell.start():
            topics.append(message.topic)
            shell.ack(message)
    assert "t2" in topics


@pytest.mark.parametrize("how", ["deadline", "abandoned"])
def test_ack__given_back_while_the_claim_is_revoked__is_kept_or_refused(shell, database, how):
    """I17. Dropped silently, ack(wait=True) returns at once, as if it were durable."""
    database.published(1, 0, count=2)
    shell.until_waiting()
    message = shell.start()[0]
    if how == "deadline":
        shell.engine.revoke([KEY])
        shell.now_s += 30.0
        shell.engine.next_command(shell.now_s)
    else:
        shell.engine.abandon(shell.subscriptions)
    partition = owned(shell)
    try:
        shell.ack(message)
    except StaleEpochError:
        return
    shell.pass_time(1.0)
    assert partition.saved_count == 1
    assert database.claims[KEY].newest.committed == 1


def test_busy_claim__with_messages_waiting__is_not_asked_without_a_pause(shell, database):
    database.published(1, 0, count=5)
    database.locked.add(KEY)
    exchanges = shell.engine.exchange_count
    for _ in range(50):
        if isinstance(shell.step(), Wait):
            break
    assert shell.engine.exchange_count - exchanges < 5


def test_busy_claim__unlocked_again__loses_no_ack(shell, database):
    database.published(1, 0, count=5)
    shell.until_waiting()
    shell.handle(5)
    database.locked.add(KEY)
    shell.answer(shell.until_exchange())
    assert database.claims[KEY].newest.committed == 0
    database.locked.clear()
    shell.pass_time(0.1)
    assert database.claims[KEY].newest.committed == 5


def test_release__exchange_says_busy__is_not_done_without_the_acks(shell, database):
    """Exchange and release are two statements: a row locked in the first may be free in the second."""
    database.published(1, 0, count=5)
    shell.until_waiting()
    shell.handle(5)
    shell.engine.revoke([KEY])
    command = shell.until_exchange()
    assert isinstance(command, Exchange)
    database.locked.add(KEY)
    request = Request.of(command)
    settled, _, due = commit(database, shell.id, dataclasses.replace(request, releases=[]))
    database.locked.clear()
    released = database.release(shell.id, request.releases)
    shell.engine.on_exchanged(command, settled, released, [], {}, due, [], shell.now_s)
    shell.now_s += 1.0
    shell.until_waiting()
    assert database.claims[KEY].newest.committed == 5


def test_all_claims_lost__acks_pending__waits_for_something_ahead(shell, database):
    database.published(1, 0, count=1)
    shell.until_waiting()
    shell.handle(1)
    shell.engine.drop([KEY])
    shell.now_s += 1.0
    command = shell.engine.next_command(shell.now_s)
    assert isinstance(command, Wait)
    assert command.until_s > shell.now_s


def test_answer_lost_after_commit__release__acks_in_it_count_as_saved(shell, database):
    """I17. The acks are durable, yet ack(wait=True) would raise StaleEpochError: lost before the ack was committed."""
    database.published(1, 0, count=1)
    shell.until_waiting()
    shell.handle(1)
    shell.engine.revoke([KEY])
    partition = owned(shell)
    shell.lose_answer(committed=True)
    shell.step()
    assert database.claims[KEY].newest.committed == 1
    assert partition.saved_count == 1


def test_claim_taken__while_draining__is_released(database):
    """The control loop asked for it before; `drain` came between the question and the answer."""
    shell = Shell(database, ordering="partition")
    claims = database.claim(shell.id, [KEY])
    shell.engine.drain()
    shell.engine.on_claimed(claims[0], shell.now_s)
    shell.until_waiting()
    assert database.claims[KEY].owner is None


def test_bulk_transaction__held_open__does_not_flood_the_reader(database):
    """I15. All of its rows appear in one pass of evidence when it commits."""
    shell = Shell(database, ordering="partition", limits=Limits(max_window=10))
    shell.claim_all()
    bulk = database.begin()
    for _ in range(2000):
        database.publish(bulk, 1, 0)
    shell.pass_time(1.0)
    database.end(bulk, commit=True)
    shell.pass_time(0.1)
    assert len(owned(shell).ready) <= 100
    handled = []
    while chunk := shell.handle(10):
        handled += chunk
        shell.pass_time(0.02)
    assert handled == list(range(2000))


@pytest.mark.parametrize("ordering", ["key", "none"])
def test_bulk_transaction__held_open_and_not_waited_for__does_not_stop_what_comes_behind(database, ordering):
    """It used up the window: a few dozen open messages stopped the partition."""
    shell = Shell(database, ordering=ordering, limits=Limits(max_window=10))
    shell.claim_all()
    bulk = database.begin()
    for _ in range(100):
        database.publish(bulk, 1, 0)
    database.published(1, 0, count=300)
    handled = []
    for _ in range(100):
        shell.pass_time(0.02)
        handled += shell.handle(50)
    assert handled == list(range(100, 400))
    assert owned(shell).stopped_by(256, 10_000) == ""
    database.end(bulk, commit=True)
    for _ in range(100):
        shell.pass_time(0.02)
        handled += shell.handle(50)
    assert sorted(handled) == list(range(400))


@pytest.mark.parametrize("ordering", ["key", "none"])
def test_bulk_transaction__larger_than_what_is_read_past__stops_the_partition_and_says_so(database, ordering):
    """I15. Mutant: no bound."""
    shell = Shell(database, ordering=ordering, limits=Limits(max_window=10))
    shell.claim_all()
    bulk = database.begin()
    for _ in range(2000):
        database.publish(bulk, 1, 0)
    database.published(1, 0)
    shell.pass_time(1.0)
    assert shell.handle(10) == []
    assert owned(shell).gaps.size <= owned(shell).window.max_missing == 200
    assert owned(shell).stopped_by(256, 10_000) == "open transactions"
    database.end(bulk, commit=True)
    shell.pass_time(0.1)
    assert len(owned(shell).ready) <= 300
    handled = []
    while chunk := shell.handle(10):
        handled += chunk
        shell.pass_time(0.02)
    assert sorted(handled) == list(range(2001))
    assert owned(shell).stopped_by(256, 10_000) == ""


def test_exchange__counts_and_lists__go_together(shell, database):
    """What `requests.exchange_call` relies on."""
    database.published(1, 0, count=3)
    shell.until_waiting()
    shell.handle(2)
    command = shell.until_exchange()
    assert [list(ranges) for ranges in command.settled] == [[(0, 2)]]
    assert list(command.settled_counts) == [2]
    assert len(command.partitions) == len(command.wants) == 1


def test_reclaimed__after_a_takeover__skips_what_was_done(shell, database):
    """`done` of the claim: neither delivered again nor taken for a gap."""
    database.published(1, 0, count=6)
    claim = database.claims[KEY]
    database.claims[KEY].history.append(claim.newest._replace(seq=claim.newest.seq + 1, done=frozenset({2, 3})))
    other = Shell(database, 2, ordering="partition")
    database.coordinators[shell.id].state = "dead"
    other.claim_all()
    other.until_waiting()
    assert other.handle(9) == [0, 1, 4, 5]
    other.pass_time(0.1)
    assert database.claims[KEY].newest.committed == 6


def test_reclaimed__done_beyond_a_small_window__is_not_delivered_again(shell, database):
    """I5. An ack below joins up with `done`, committed passes hwm and position, and what lies between looks missing."""
    database.published(1, 0, count=20)
    claim = database.claims[KEY]
    database.claims[KEY].history.append(claim.newest._replace(seq=claim.newest.seq + 1, done=frozenset(range(4, 16))))
    other = Shell(database, 2, Limits(max_window=4), ordering="partition")
    database.coordinators[shell.id].state = "dead"
    other.claim_all()
    handled = []
    for _ in range(50):
        other.pass_time(0.05)
        handled += other.handle(1)
    assert handled == [0, 1, 2, 3, 16, 17, 18, 19]


def test_exchange__carried_out_after_its_resolve__is_not_taken_for_the_next_one(shell, database):
    """I17. A backend works off what it had received although its client is gone.

    Here it does so after the client has reconnected, resolved ("not applied") and sent the next exchange, which carries one ack more. That one is stale, and the
    seq that resolve then finds is the number of both.
    """
    database.published(1, 0, count=5)
    shell.until_waiting()
    first, second = shell.start(2)
    partition = owned(shell)
    shell.ack(first)
    command = shell.until_exchange()
    late = Request.of(command)
    shell.engine.on_failed(command)
    shell.engine.on_reconnected()
    shell.step()  # Resolve
    shell.ack(second)
    commit(database, shell.id, late)
    shell.step()  # Exchange, stale
    shell.step()  # Resolve
    assert database.claims[KEY].newest.committed == 1
    assert partition.saved_count < partition.settled_count
    shell.pass_time(1.0)
    assert database.claims[KEY].newest.committed == 2
    assert shell.handle(9) == [2, 3, 4]


@pytest.fixture
def keys(database):
    """A shell that hands over in the order of keys."""
    made = Shell(database)
    made.claim_all()
    return made


def test_noted_acks__taken_in_together__settle_as_one_by_one(keys, database):
    for number in range(40):
        database.published(1, 0, keys=[f"k{number % 8}"])
    keys.until_waiting()
    handled = []
    while batch := keys.start(100):
        assert len({message.key for message in batch}) == len(batch)
        for message in batch:
            keys.engine.note_ack(message.delivery, keys.now_s)
            keys.engine.note_ack(message.delivery, keys.now_s)
        handled += [message.offset for message in batch]
    assert sorted(handled) == list(range(40))
    keys.pass_time(0.1)
    assert database.claims[KEY].newest.committed == 40
    assert keys.engine.idle
    assert keys.engine.heap.live == keys.engine.heap.live_bytes == 0


def test_noted_ack__deadline_passed_before_it_is_taken_in__is_an_ack(keys, database):
    database.published(1, 0, keys=["k"])
    keys.until_waiting()
    (message,) = keys.start()
    keys.engine.note_ack(message.delivery, keys.now_s)
    keys.pass_time(keys.engine.limits.visibility_timeout_s + 1)
    assert keys.start() == []
    assert database.claims[KEY].newest.committed == 1


def test_noted_ack__then_nack__the_first_counts(keys, database):
    database.published(1, 0, keys=["k"])
    keys.until_waiting()
    (message,) = keys.start()
    keys.engine.note_ack(message.delivery, keys.now_s)
    assert keys.nack(message) is None
    keys.pass_time(0.1)
    assert database.claims[KEY].newest.committed == 1


def test_noted_ack__claim_lost_before_it_is_written__is_told(keys, database):
    database.published(1, 0, keys=["k"])
    keys.until_waiting()
    (message,) = keys.start()
    keys.engine.note_ack(message.delivery, keys.now_s)
    partition = owned(keys)
    keys.engine.drop([KEY])
    assert list(keys.engine.losses.named) == [partition.source]
    with pytest.raises(StaleEpochError):
        keys.engine.note_ack(message.delivery, keys.now_s)


def test_lost_acks__one_of_them_is_waited_for__the_others_are_told_to_the_next_commit(keys, database):
    """I17, where threads ack and one commits. Mutant: who waits for his own ack takes away what was to be told of all."""
    database.published(1, 0, count=3, keys=["a", "b", "c"])
    keys.until_waiting()
    first, second, third = keys.start(3)
    keys.engine.note_ack(first.delivery, keys.now_s)
    keys.ack(second)
    partition = owned(keys)
    count = partition.settled_count
    keys.engine.drop([KEY])
    with pytest.raises(StaleEpochError):
        check_ack(keys.engine, partition, count)
    with pytest.raises(StaleEpochError):
        check_committed(keys.engine, all_unsaved(keys.engine))
    check_committed(keys.engine, all_unsaved(keys.engine))
    with pytest.raises(StaleEpochError):
        keys.ack(third)


def test_lost_ack__is_the_only_one__is_told_once(keys, database):
    database.published(1, 0)
    keys.until_waiting()
    (message,) = keys.start()
    keys.ack(message)
    partition = owned(keys)
    keys.engine.drop([KEY])
    with pytest.raises(StaleEpochError):
        check_ack(keys.engine, partition, partition.settled_count)
    check_committed(keys.engine, all_unsaved(keys.engine))


def test_losses__nobody_asks__are_counted_and_few_are_named(keys, database):
    """Under `run` nobody does. Mutant: a list of the claims, each with all that was known of it."""
    for number in range(50):
        database.published(1, 0)
        keys.until_waiting()
        (message,) = keys.start()
        keys.ack(message)
        keys.engine.drop([KEY])
        assert keys.engine.losses.count == number + 1
        keys.claim_all()
    assert len(keys.engine.losses.named) < 50
    with pytest.raises(StaleEpochError, match="more"):
        check_committed(keys.engine, [])
    check_committed(keys.engine, [])


def test_noted_ack__shell_waits__is_woken_once(keys, database):
    woken = []
    keys.engine._wake = lambda: woken.append(True)
    for _ in range(2):
        database.published(1, 0)
    keys.until_waiting()
    messages = keys.start(2)
    keys.until_waiting()
    woken.clear()
    for message in messages:
        keys.engine.note_ack(message.delivery, keys.now_s)
    assert len(woken) == 1


def test_stand_still__claim_is_paused__fetches_and_hands_over_nothing_and_settles_what_runs(shell, database):
    database.published(1, 0, count=3)
    shell.until_waiting()
    running = shell.start()[0]
    shell.engine.stand_still(frozenset({KEY}))
    assert shell.take() == []
    shell.ack(running)
    database.published(1, 0, count=5)
    shell.pass_time(1.0)
    assert shell.take() == []
    newest = database.claims[KEY].newest
    assert (newest.committed, newest.hwm) == (1, 3)
    shell.engine.stand_still(frozenset())
    shell.pass_time(1.0)
    assert shell.handle(10) == [1, 2, 3, 4, 5, 6, 7]


def test_stand_still__parked_message_is_due__waits_for_the_end_of_the_pause_without_spinning(shell, database):
    database.published(1, 0, count=1)
    shell.until_waiting()
    shell.nack(shell.start()[0], delay_s=1.0)
    shell.pass_time(0.1)
    shell.engine.stand_still(frozenset({KEY}))
    shell.pass_time(5.0)
    assert shell.take() == []
    shell.engine.stand_still(frozenset())
    shell.pass_time(2.0)
    assert shell.handle(10) == [0]


def test_claimed__while_it_is_paused__starts_nothing(database):
    made = Shell(database, ordering="partition")
    made.engine.stand_still(frozenset({KEY}))
    made.claim_all()
    database.published(1, 0, count=3)
    made.pass_time(1.0)
    assert made.take() == []
    assert database.claims[KEY].newest.hwm == 0
