"""The engine when messages fail: late events, retries, dead letters, crashes, bounds; told on the fake database."""

import pytest
from support.engine_driver import Request, Shell, commit
from support.fake_database import FakeDatabase

from coordinator.core import loop
from coordinator.core.loop import Exchange, Limits, Wait
from coordinator.core.retry import RetryPolicy
from coordinator.errors import AlreadySettledError, Reject
from coordinator.model import Message, PartitionKey

KEY = PartitionKey(1, 1, 0)
QUICK = RetryPolicy(max_attempts=3, delays=[1.0])


@pytest.fixture
def database():
    return FakeDatabase({1: 1}, {1: [1]})


def shell_of(database, number=1, limits=None, **options):
    shell = Shell(database, number, limits, **options)
    shell.claim_all()
    shell.until_waiting()
    return shell


def claim_of(database):
    return database.claims[KEY]


def finished(database, count):
    """Everything is settled, nothing is left behind."""
    claim = claim_of(database)
    return claim.newest.committed == count and not (claim.retries or claim.acks or claim.crashes)


# ---- late events: one outcome each


@pytest.mark.parametrize("ordering", ["partition", "key", "none"])
@pytest.mark.parametrize("what", ["ack", "nack", "extend"])
@pytest.mark.parametrize(
    "when", ["before the deadline", "taken back", "failure under way", "ready again", "second runs"]
)
def test_first_run__speaks_late__has_one_outcome(database, ordering, what, when):
    """An ack of the work that was done counts whenever it comes; a late nack or extend changes nothing."""
    database.published(1, 0, count=2, keys=["k"])
    shell = shell_of(database, ordering=ordering, policy=RetryPolicy(delays=[5.0]))
    (first,) = shell.start()
    command, second = None, None
    if when != "before the deadline":
        shell.now_s += 30.0
        command = shell.engine.next_command(shell.now_s)
        assert isinstance(command, Exchange)
        assert [entry["k"] for entry in command.hard] == ["retry"]
        if when == "taken back":
            shell.engine.on_failed(command)
            command = None
    if when in ("ready again", "second runs"):
        shell.answer(command)
        command = None
        shell.pass_time(0.1)
    if when == "second runs":
        (second,) = shell.start()
        assert (second.offset, second.attempt) == (0, 2)
    if what == "ack":
        shell.ack(first)
    elif what == "nack":
        verdict = shell.nack(first)
        assert (verdict is None) == (when != "before the deadline")
    else:
        extended = shell.engine.extend(first.delivery, shell.now_s + 60, shell.now_s)
        assert extended == (when == "before the deadline")
    if command is not None:
        shell.answer(command)
    shell.pass_time(1.0)
    again = shell.start()
    if what == "ack":
        assert [message.offset for message in again] == [1]
    elif when == "before the deadline" or second is not None:
        # The delay has not passed, or the delivery is still in flight: nothing overtakes it.
        assert [message.offset for message in again] == ([1] if ordering == "none" else [])
        if second is not None:
            shell.ack(second)
    else:
        assert [(message.offset, message.attempt) for message in again] == [(0, 2)]
    for message in again:
        shell.ack(message)
    for _ in range(4):
        shell.pass_time(30.0)
        shell.handle(9)
    shell.pass_time(0.1)
    assert finished(database, 2)
    assert not claim_of(database).dead


@pytest.mark.parametrize("written", [True, False])
def test_ack__while_its_failure_is_under_way_and_the_answer_gets_lost__is_not_lost(database, written):
    database.published(1, 0)
    shell = shell_of(database)
    (first,) = shell.start()
    shell.now_s += 30.0
    command = shell.engine.next_command(shell.now_s)
    shell.ack(first)
    partition = shell.engine.partitions[KEY]
    if written:
        commit(database, shell.id, Request.of(command))
    shell.engine.on_failed(command)
    shell.engine.on_reconnected()
    assert partition.saved_count < partition.settled_count
    shell.pass_time(1.0)
    assert shell.take() == []
    assert partition.saved_count == partition.settled_count
    assert finished(database, 1)


def test_ack__confirmed_while_its_failure_is_under_way__is_in_the_table(database):
    """I17. The exchange that carries the failure does not carry the ack."""
    database.published(1, 0)
    shell = shell_of(database)
    (first,) = shell.start()
    shell.now_s += 30.0
    command = shell.engine.next_command(shell.now_s)
    shell.ack(first)
    shell.answer(command)
    partition = shell.engine.partitions[KEY]
    assert claim_of(database).retries
    assert partition.saved_count < partition.settled_count
    shell.pass_time(0.1)
    assert finished(database, 1)


# ---- retries and dead letters


@pytest.mark.parametrize("ordering", ["partition", "key", "none"])
def test_nack__until_the_budget_is_spent__is_delayed_each_time_and_then_a_dead_letter(database, ordering):
    database.published(1, 0, keys=["k"])
    shell = shell_of(database, ordering=ordering, policy=RetryPolicy(max_attempts=3, delays=[1.0, 10.0]))
    starts = []
    for _ in range(200):
        for message in shell.start():
            starts.append((round(shell.now_s, 1), message.attempt, message.key))
            shell.nack(message)
        shell.pass_time(0.1)
    assert [(attempt, key) for _, attempt, key in starts] == [(1, "k"), (2, "k"), (3, "k")]
    (first, *_), (second, *_), (third, *_) = starts
    assert 1.0 <= second - first < 1.3
    assert 10.0 <= third - second < 10.3
    dead = claim_of(database).dead[0]
    assert (dead.reason, dead.attempts, dead.key) == ("attempts", 3, "k")
    assert finished(database, 1)


def test_reject__is_a_dead_letter_at_once(database):
    database.published(1, 0)
    shell = shell_of(database)
    shell.nack(shell.start()[0], Reject("broken"))
    shell.pass_time(0.1)
    assert claim_of(database).dead[0].reason == "rejected"
    assert [entry["reason"] for _, entry in shell.changes.buried] == ["rejected"]
    assert finished(database, 1)


def test_dead_letter__that_cannot_be_stored__is_tried_again_once_a_second_and_holds_nothing_up(database):
    database.published(1, 0, count=3)
    database.unstorable.add((KEY, 0))
    shell = shell_of(database)
    shell.nack(shell.start()[0], Reject("broken"))
    assert shell.handle(9) == [1, 2]
    shell.pass_time(10.0)
    assert 5 <= len(shell.changes.refused) <= 20
    assert claim_of(database).newest.committed == 0
    database.unstorable.clear()
    shell.pass_time(2.0)
    assert finished(database, 3)


def test_takeover__parked__keeps_its_delay_and_its_attempts(database):
    """I14, I11."""
    database.published(1, 0)
    shell = shell_of(database, policy=RetryPolicy(delays=[10.0]))
    shell.nack(shell.start()[0])
    shell.pass_time(1.0)
    shell.die()
    other = shell_of(database, 2)
    other.pass_time(8.5)
    assert other.take() == []
    other.pass_time(1.0)
    assert [(message.offset, message.attempt) for message in other.start()] == [(0, 2)]


@pytest.mark.parametrize("ordering", ["partition", "key", "none"])
def test_batch__failed_messages__are_handed_over_one_by_one(database, ordering):
    """R19. A failing batch does not use up its neighbours' attempts."""
    database.published(1, 0, count=6)
    shell = shell_of(database, ordering=ordering, policy=RetryPolicy(delays=[0.0]))
    batch = shell.start(3)
    assert len(batch) == 3
    for message in batch:
        shell.nack(message)
    shell.pass_time(0.1)
    sizes = []
    while batch := shell.start(3):
        sizes.append([message.offset for message in batch])
        for message in batch:
            shell.ack(message)
        shell.pass_time(0.1)
    assert [offsets for offsets in sizes if offsets[0] < 3] == [[0], [1], [2]]
    assert [offset for offsets in sizes for offset in offsets if offset >= 3] == [3, 4, 5]


def test_replay__comes_back_at_attempt_one_and_passes_everybody(database):
    database.published(1, 0, count=2)
    shell = shell_of(database, ordering="partition")
    shell.nack(shell.start()[0], Reject("broken"))
    shell.pass_time(0.1)
    shell.handle(1)
    shell.pass_time(0.1)
    assert database.replay(KEY, [0]) == [(0, "replayed")]
    shell.pass_time(1.5)
    assert [(message.offset, message.attempt) for message in shell.start()] == [(0, 1)]


def test_transactional__failure_written_after_the_commit__is_not_delivered_again(database):
    """R15, R1. The ack outranks the retries row, and its own row goes with the clear and not before."""
    database.published(1, 0)
    shell = shell_of(database, transactional=True)
    (first,) = shell.start()
    shell.engine.begin_run(first.delivery)
    shell.now_s += 30.0
    command = shell.engine.next_command(shell.now_s)
    database.ack(shell.id, KEY, 1, [0], [0])
    shell.engine.acked_in_transaction(first.delivery, shell.now_s)
    shell.engine.end_run(first.delivery)
    shell.answer(command)
    assert claim_of(database).acks
    shell.pass_time(1.0)
    assert shell.take() == []
    assert finished(database, 1)


@pytest.mark.parametrize("stage", ["not sent", "on its way", "written"])
@pytest.mark.parametrize("overrun", [False, True])
def test_transactional__run_begun_after_another_was_acked__is_refused(database, stage, overrun):
    """R1. The acks row goes with the clear, and is gone before the answer is here: nobody would refuse who begins late.

    Mutant: what is in the retries table is unsettled, whether or not its clear is on the way.
    """
    database.published(1, 0)
    shell = shell_of(database, transactional=True, policy=QUICK)
    (first,) = shell.start()
    shell.pass_time(31.0)
    (second,) = shell.start()
    shell.engine.begin_runs([second.delivery])
    if overrun:
        shell.now_s += 30.0
        command = shell.engine.next_command(shell.now_s)
    database.ack(shell.id, KEY, 1, [0], [0])
    shell.engine.acked_in_transaction(second.delivery, shell.now_s)
    shell.engine.end_run(second.delivery)
    if overrun:
        with pytest.raises(AlreadySettledError):
            shell.engine.begin_runs([first.delivery])
        shell.answer(command)
    if stage != "not sent":
        command = shell.until_exchange()
        assert any(line["k"] == "clear" for line in command.hard)
        if stage == "written":
            shell.answer(command)
            assert not claim_of(database).acks
    with pytest.raises(AlreadySettledError):
        shell.engine.begin_runs([first.delivery])


# ---- keys


def test_key__head_fails__its_successors_wait_and_other_keys_go_on(database):
    database.published(1, 0, count=6, keys=["a", "b"])
    shell = shell_of(database, policy=QUICK)
    shell.nack(shell.start()[0])
    shell.pass_time(0.1)
    assert shell.handle(9) == [1, 3, 5]
    assert dict(shell.engine.partitions[KEY].lanes.blocked()) == {"a": 3}
    shell.pass_time(1.0)
    assert shell.handle(9) == [0, 2, 4]
    shell.pass_time(0.1)
    assert finished(database, 6)


def test_hot_key__head_failed_once__does_not_stay_on_a_one_by_one_path(database):
    """R18. What was parked behind comes back a window at a time."""
    database.published(1, 0, count=300, keys=["hot"])
    shell = shell_of(database, limits=Limits(max_window=50), policy=QUICK)
    shell.nack(shell.start()[0])
    for _ in range(16):
        shell.pass_time(0.05)
        assert shell.take(9) == []
    assert sum(row.behind for row in claim_of(database).retries.values()) > 100
    handled, exchanges = [], shell.engine.exchange_count
    for _ in range(100):
        shell.pass_time(0.05)
        handled += shell.handle(100)
    shell.pass_time(0.1)
    assert handled == list(range(300))
    assert shell.engine.exchange_count - exchanges < 150
    assert finished(database, 300)


def test_straggler__below_a_parked_head__neither_waits_for_it_nor_is_parked_behind_it(database):
    """It would be parked behind a message that waits for it: for ever."""
    open_ = database.begin()
    database.publish(open_, 1, 0, "k")
    database.published(1, 0, count=20, keys=["k"])
    shell = shell_of(database, limits=Limits(max_window=8), policy=QUICK)
    shell.pass_time(0.1)
    (head,) = shell.start()
    database.end(open_, commit=True)
    shell.pass_time(0.1)
    shell.nack(head)
    shell.pass_time(0.1)
    assert shell.handle(5) == [0]
    handled = []
    for _ in range(50):
        shell.pass_time(0.1)
        handled += shell.handle(30)
    assert handled == list(range(1, 21))
    assert finished(database, 21)


def test_straggler__visible_before_its_successor_was_published__starts_first(database):
    """I10. Who publishes under the lock of a business row has his messages in order, whenever a gap is looked at."""
    shell = shell_of(database, limits=Limits(gap_poll_min_s=10.0, gap_poll_max_s=10.0))
    open_ = database.begin()
    database.publish(open_, 1, 0, "k")
    database.published(1, 0, count=1, keys=["other"])
    shell.engine.expect(shell.now_s)
    shell.until_waiting()
    database.end(open_, commit=True)
    database.published(1, 0, count=1, keys=["k"])
    shell.engine.expect(shell.now_s)
    shell.until_waiting()
    handled = shell.handle(9)
    assert handled.index(0) < handled.index(2)


def test_takeover__parked_message_of_a_key__starts_when_what_is_before_it_has_been_read(database):
    """R18. What is before it may be a message that its own epoch had not seen."""
    open_ = database.begin()
    database.publish(open_, 1, 0, "k")
    database.published(1, 0, count=1, keys=["k"])
    shell = shell_of(database, policy=RetryPolicy(delays=[0.0]))
    shell.pass_time(0.1)
    shell.nack(shell.start()[0])
    shell.until_waiting()
    shell.die()
    database.end(open_, commit=True)
    database.now_s += 60.0
    other = shell_of(database, 2)
    other.pass_time(1.0)
    assert other.handle(5) == [0, 1]


# ---- crashes


def crash(database, number, offsets, ordering="key", limits=None):
    """A process that starts these and dies."""
    shell = shell_of(database, number, limits, ordering=ordering)
    shell.pass_time(400.0)
    taken = []
    while len(taken) < len(offsets):
        taken += shell.take(len(offsets) - len(taken))
        shell.pass_time(0.1)
    assert taken == offsets
    shell.die()


def test_crash__charges_the_window_and_the_next_is_small_until_that_is_settled(database):
    database.published(1, 0, count=4)
    crash(database, 1, [0])
    shell = shell_of(database, 2)
    assert shell.take() == []
    shell.pass_time(1.1)
    assert [(m.offset, m.attempt) for m in shell.start(9)] == [(0, 2), (1, 2), (2, 2), (3, 2)]
    assert shell.engine.partitions[KEY].window.max_size == 7
    database.published(1, 0, count=1000)
    while claim_of(database).newest.committed < 1004:
        shell.handle(50)
        for message in list(shell.engine.partitions[KEY].in_flight.values()):
            shell.ack(message)
        shell.pass_time(0.05)
    assert shell.engine.partitions[KEY].window.max_size == 500


def test_poison__only_one_that_may_have_run__is_dead_after_its_budget(database):
    """The last crash that counts is one while it was alone; the message behind it is no victim."""
    database.published(1, 0, count=2)
    for number in (1, 2, 3):
        crash(database, number, [0])
        database.now_s += 400.0
    shell = shell_of(database, 9)
    shell.pass_time(400.0)
    handled = []
    for _ in range(20):
        handled += shell.handle(5)
        shell.pass_time(0.1)
    assert handled == [1]
    assert {offset: dead.reason for offset, dead in claim_of(database).dead.items()} == {0: "crash"}
    assert finished(database, 2)


def test_crash__while_a_transaction_is_open__reads_past_a_window_at_most_and_says_so(database):
    """What is read beside the open messages would be charged with the next crash."""
    bulk = database.begin()
    for _ in range(3):
        database.publish(bulk, 1, 0)
    database.published(1, 0)
    crash(database, 1, [3])
    for _ in range(100):
        database.publish(bulk, 1, 0)
    database.published(1, 0)
    shell = shell_of(database, 2)
    partition = shell.engine.partitions[KEY]
    handled = []
    for _ in range(30):
        shell.pass_time(0.2)
        handled += shell.handle(50)
    assert handled == [3]
    assert partition.gaps.size <= partition.window.max_waiting
    assert partition.stopped_by(256, 10_000) == "open transactions"
    database.end(bulk, commit=True)
    for _ in range(60):
        shell.pass_time(0.2)
        handled += shell.handle(50)
    assert sorted(handled) == list(range(105))
    assert partition.stopped_by(256, 10_000) == ""
    assert finished(database, 105)


def test_alone__starts_when_nothing_else_runs_and_nothing_starts_beside_it():
    """Of any group of the process."""
    database = FakeDatabase({1: 2}, {1: [1], 2: [1]})
    for partition in (0, 1):
        database.published(1, partition, count=5)
    for number in (1, 2):
        shell = shell_of(database, number)
        shell.pass_time(400.0)
        shell.die()
    shell = shell_of(database, 3)
    shell.pass_time(400.0)
    seen = []
    for _ in range(100):
        batch = shell.start(9)
        seen += [(m.delivery.owner.key, m.offset) for m in batch]
        if batch:
            assert len(batch) == 1, "everybody here has to run alone"
            assert shell.start(9) == []
            windows = [claim.newest.hwm - claim.newest.committed for claim in database.claims.values()]
            handed = [row for claim in database.claims.values() for row in claim.retries.values() if row.dispatched]
            assert (sum(windows), len(handed)) == (0, 1), "a crash now is charged to this one only"
            shell.ack(batch[0])
        shell.pass_time(0.1)
    assert sorted(seen) == sorted((key, offset) for key in database.claims for offset in range(5))


def test_alone__has_ended__little_is_read_and_handed_out_at_first():
    """The next of its kind takes back all that was read, and handed out, of all claims. Mutant: it is all read once more for each."""
    database = FakeDatabase({1: 1, 2: 1}, {1: [1, 2]})
    database.published(1, 0, count=3)
    for number in (1, 2):
        shell = shell_of(database, number)
        shell.pass_time(400.0)
        shell.die()
    database.published(2, 0, count=500)
    shell = shell_of(database, 3)
    shell.pass_time(400.0)
    suspects, others = shell.subscriptions
    read, handled = [0], 0
    while handled < 3 or len(read) < 12:
        shell.now_s += 0.001
        command = shell.step()
        if isinstance(command, Exchange):
            place = [p.key.topic_id for p in command.partitions].index(2)
            read.append(command.wants[place])
        for message in shell.engine.take([suspects], 1, shell.now_s):
            handled += 1
            read.clear()
            shell.ack(message)
        if handled == 3:
            for message in shell.engine.take([others], 9, shell.now_s):
                shell.ack(message)
    wants = [want for want in read if want]
    assert wants[0] <= 2
    assert max(wants) > 8


@pytest.mark.parametrize("ordering", ["key", "none"])
def test_alone__found_while_a_quick_taker_holds_some_ahead__is_not_passed_over(ordering):
    """I10. Mutant: with nothing to hand over but a message for later, what was held ahead is taken back, and looked at again."""
    database = FakeDatabase({1: 1, 2: 1}, {1: [1, 2]})
    database.published(1, 0, count=3)
    for number in (1, 2):
        shell = shell_of(database, number, ordering=ordering)
        shell.pass_time(400.0)
        shell.die()
    database.published(2, 0, count=400)
    shell = shell_of(database, 3, ordering=ordering)
    shell.pass_time(400.0)
    suspects, others = shell.subscriptions
    ahead = shell.engine.open_ahead()
    while not ahead.messages:
        for message in shell.engine.take([others], 1, shell.now_s, ahead):
            shell.ack(message)
    assert shell.engine.take([suspects], 1, shell.now_s) == []
    assert shell.engine.lonely.row[1] == 0
    handled = []
    for _ in range(60):
        shell.pass_time(0.1)
        for message in shell.engine.take([suspects], 1, shell.now_s):
            handled.append(message.offset)
            shell.ack(message)
        for message in shell.engine.take([others], 9, shell.now_s):
            shell.ack(message)
    assert handled == [0, 1, 2]


def test_alone__its_subscription_is_paused__does_not_hold_up_the_others():
    database = FakeDatabase({1: 1, 2: 1}, {1: [1, 2]})
    database.published(1, 0)
    for number in (1, 2):
        shell = shell_of(database, number)
        shell.pass_time(400.0)
        shell.die()
    database.published(2, 0, count=3)
    shell = shell_of(database, 3)
    shell.pass_time(400.0)
    shell.take(0)
    shell.engine.pause(shell.subscriptions[:1], paused=True)
    handled = []
    for _ in range(20):
        handled += shell.handle(5)
        shell.pass_time(0.1)
    assert handled == [0, 1, 2]
    shell.engine.pause(shell.subscriptions[:1], paused=False)
    for _ in range(20):
        handled += shell.handle(5)
        shell.pass_time(0.1)
    assert handled == [0, 1, 2, 0]


@pytest.mark.parametrize("written", [True, False])
def test_alone__answer_of_the_emptying_exchange_gets_lost__nothing_starts_outside_of_a_window(database, written):
    """I9."""
    database.published(1, 0, count=4)
    for number in (1, 2):
        shell = shell_of(database, number)
        shell.pass_time(400.0)
        shell.die()
    shell = shell_of(database, 3)
    shell.pass_time(400.0)
    shell.take()
    command = shell.engine.next_command(shell.now_s)
    assert {entry["k"] for entry in command.hard} >= {"empty", "alone"}
    if written:
        commit(database, shell.id, Request.of(command))
    shell.engine.on_failed(command)
    handled = []
    for _ in range(60):
        shell.pass_time(0.1)
        for message in shell.start(9):
            newest, row = claim_of(database).newest, claim_of(database).retries.get(message.offset)
            assert newest.hwm > message.offset or row.dispatched == message.epoch
            handled.append(message.offset)
            shell.ack(message)
    assert sorted(handled) == [0, 1, 2, 3]


@pytest.mark.parametrize("steps", range(8))
def test_alone__emptying_exchange_is_carried_out_after_it_was_given_up__no_ack_is_lost(steps):
    """I5, I9, I17: it takes the windows from under whatever has started since; an ack of that would be cut off, and told.

    Mutant: what was given up as not written starts anew at once.
    """
    database = FakeDatabase({1: 1, 2: 1}, {1: [1, 2]})
    database.published(1, 0, count=2)
    for number in (1, 2):
        shell = shell_of(database, number)
        shell.pass_time(400.0)
        shell.die()
    database.published(2, 0, count=4)
    shell = shell_of(database, 3)
    shell.pass_time(400.0)
    assert shell.engine.take(shell.subscriptions[:1], 9, shell.now_s) == []
    command = shell.until_exchange()
    assert {entry["k"] for entry in command.hard} >= {"empty", "alone"}
    late = Request.of(command)
    shell.engine.on_failed(command)
    shell.engine.on_reconnected()
    held: list[Message] = []
    handled = []

    def go_on(subscriptions: slice) -> None:
        if isinstance(command := shell.step(), Wait):
            shell.now_s = command.until_s
        held.extend(shell.engine.take(shell.subscriptions[subscriptions], 9, shell.now_s))

    for _ in range(steps):
        go_on(slice(1, 2))
    assert all(database.claims[m.delivery.owner.key].newest.hwm > m.offset for m in held)
    commit(database, shell.id, late)
    for _ in range(200):
        for message in held:
            handled.append((message.delivery.owner.key, message.offset))
            shell.ack(message)
        held.clear()
        go_on(slice(2))
    assert sorted(handled) == [
        (key, offset) for key, count in zip(sorted(database.claims), (2, 4), strict=True) for offset in range(count)
    ]
    assert [claim.newest.committed for _, claim in sorted(database.claims.items())] == [2, 4]
    assert not claim_of(database).retries


@pytest.mark.parametrize("ordering", ["key", "none", "partition"])
@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize(
    "stage", ["parked", "draining", "emptying", "emptying, lost", "emptying, written and lost", "ready"]
)
def test_alone__late_ack_while_it_waits_to_run_again__does_not_run_again(database, ordering, transactional, stage):
    """I5. Mutant: only the delivery that runs alone ends it."""
    database.published(1, 0, count=3, keys=["a"])
    for number in (1, 2):
        shell = shell_of(database, number)
        shell.pass_time(400.0)
        shell.die()
    shell = shell_of(database, 3, ordering=ordering, transactional=transactional)
    shell.pass_time(400.0)
    started = []
    while not started:
        started = shell.start(9)
        shell.pass_time(0.1)
    (late,) = started
    assert late.offset == 0
    if transactional:
        shell.engine.begin_run(late.delivery)
    shell.pass_time(31.0)
    command = None
    if stage != "parked":
        assert shell.start(9) == []
        assert shell.engine.lonely.stage == "draining"
    if stage.startswith("emptying"):
        command = shell.until_exchange()
        assert shell.engine.lonely.stage == "emptying"
    elif stage == "ready":
        shell.until_waiting()
        assert shell.engine.lonely.stage == "ready"
    request = Request.of(command) if command is not None else None
    if transactional:
        database.ack(shell.id, KEY, late.epoch, [0], [0])
        shell.engine.acked_in_transaction(late.delivery, shell.now_s)
        shell.engine.end_run(late.delivery)
    else:
        shell.ack(late)
    if command is not None and stage == "emptying":
        shell.report(command, request)
    elif command is not None:
        if "written" in stage:
            commit(database, shell.id, request)
        shell.engine.on_failed(command)
        shell.engine.on_reconnected()
    handled = []
    for _ in range(60):
        handled += shell.handle(5)
        shell.pass_time(0.1)
    assert handled == [1, 2]
    assert finished(database, 3)


def test_alone__late_ack_of_another_while_the_windows_are_emptied__its_key_goes_on():
    """Mutant: its row counts as waiting as long as it is in the table, and what comes behind it waits for ever."""
    database = FakeDatabase({1: 2}, {1: [1]})
    database.published(1, 0)
    for number in (1, 2):
        shell = shell_of(database, number)
        shell.pass_time(400.0)
        shell.die()
    database.published(1, 1, count=2, keys=["a"])
    shell = shell_of(database, 3)
    alone, other = sorted(shell.engine.partitions)
    shell.engine.stand_still(frozenset([alone]))
    shell.pass_time(400.0)
    (late,) = shell.start(9)
    shell.pass_time(31.0)
    shell.engine.stand_still(frozenset([other]))
    assert shell.start(9) == []
    command = shell.until_exchange()
    assert {entry["k"] for entry in command.hard} >= {"empty", "alone"}
    request = Request.of(command)
    shell.ack(late)
    shell.report(command, request)
    shell.engine.stand_still(frozenset())
    handled = []
    for _ in range(60):
        for message in shell.start(9):
            handled.append((message.partition, message.offset))
            shell.ack(message)
        shell.pass_time(0.1)
    assert handled == [(0, 0), (1, 1)]
    assert not any(claim.retries for claim in database.claims.values())


def test_alone__somebody_holds_another_claim__the_others_go_on():
    """R8. Mutant: all of the process waits for the windows to be emptied, for as long as that row is held."""
    database = FakeDatabase({1: 3}, {1: [1]})
    database.published(1, 0)
    for number in (1, 2):
        shell = shell_of(database, number)
        shell.pass_time(400.0)
        shell.die()
    database.published(1, 1, count=3)
    database.published(1, 2)
    shell = shell_of(database, 3)
    shell.pass_time(400.0)
    (_, _, held) = sorted(shell.engine.partitions)
    database.locked.add(held)
    handled = []

    def go_on():
        for _ in range(60):
            for message in shell.start(9):
                handled.append((message.partition, message.offset))
                shell.ack(message)
            shell.pass_time(0.1)

    go_on()
    assert {place for place in handled if place[0] == 1} == {(1, 0), (1, 1), (1, 2)}
    assert (0, 0) not in handled
    database.locked.clear()
    go_on()
    assert (0, 0) in handled
    assert [claim.newest.committed for _, claim in sorted(database.claims.items())] == [1, 3, 1]
    assert len(handled) == len(set(handled))


@pytest.mark.parametrize("how", ["revoked", "dropped"])
def test_alone__its_claim_goes_while_the_windows_are_emptied__nothing_starts_that_has_no_window(how):
    """I5, I17: what started then would be acked over nothing, told to be durable, and delivered again."""
    database = FakeDatabase({1: 2}, {1: [1]})
    database.published(1, 0)
    for number in (1, 2):
        shell = shell_of(database, number)
        shell.pass_time(400.0)
        shell.die()
    database.published(1, 1, count=4)
    shell = shell_of(database, 3)
    alone, other = sorted(shell.engine.partitions)
    shell.pass_time(400.0)
    assert shell.take(9) == []
    command = shell.until_exchange()
    assert {entry["k"] for entry in command.hard} >= {"empty", "alone"}
    request = Request.of(command)
    if how == "revoked":
        shell.engine.revoke([alone])
    else:
        shell.engine.drop([alone])
    assert shell.take(9) == [], "its window is being taken back"
    shell.report(command, request)
    handled = []
    for _ in range(30):
        shell.pass_time(0.1)
        handled += shell.handle(9)
    shell.pass_time(5.0)
    assert handled == [0, 1, 2, 3]
    assert database.claims[other].newest.committed == 4
    assert shell.engine.partitions[other].saved_count == 4


def test_alone__its_claim_is_locked_when_the_outcome_is_asked_for__does_not_start(database):
    """The answer of the emptying exchange is lost; one of other claims must not be taken for it."""
    database = FakeDatabase({1: 2}, {1: [1]})
    database.published(1, 0)
    for number in (1, 2):
        shell = shell_of(database, number)
        shell.pass_time(400.0)
        shell.die()
    shell = shell_of(database, 3)
    shell.pass_time(400.0)
    assert shell.take(9) == []
    command = shell.until_exchange()
    assert {entry["k"] for entry in command.hard} >= {"empty", "alone"}
    shell.engine.on_failed(command)
    (alone, _) = sorted(shell.engine.partitions)
    database.locked.add(alone)
    shell.step()
    database.published(1, 1, count=1)
    shell.engine.expect(shell.now_s)
    shell.step()
    assert not any(message.partition == 0 for message in shell.start(9))


# ---- bounds


def test_max_parked__reached__stops_reading_and_drops_nothing(database):
    database.published(1, 0, count=100)
    shell = shell_of(
        database, limits=Limits(max_window=10, max_parked=20), policy=RetryPolicy(max_attempts=2, delays=[5.0])
    )
    for _ in range(40):
        for message in shell.start(10):
            shell.nack(message)
        shell.pass_time(0.05)
    parked = len(claim_of(database).retries)
    assert 20 <= parked <= 40
    assert shell.engine.partitions[KEY].at_bound(256, 20)
    for _ in range(400):
        for message in shell.start(10):
            shell.nack(message)
        shell.pass_time(0.5)
    assert sorted(claim_of(database).dead) == list(range(100))
    assert finished(database, 100)


def test_max_holes__reached_and_taken_over__is_left_again(database):
    """A claim at the bound has its window taken back with the takeover; the holes are what has to be read."""
    database.published(1, 0, count=60)
    limits = Limits(max_window=60, max_holes=4)
    shell = shell_of(database, limits=limits, ordering="none")
    for message in shell.start(60):
        if message.offset % 2:
            shell.ack(message)
    shell.pass_time(1.0)
    assert shell.engine.partitions[KEY].holes >= 4
    database.published(1, 0, count=10)
    shell.pass_time(1.0)
    assert shell.take() == []
    assert shell.engine.partitions[KEY].at_bound(4, 10_000)
    shell.engine.drop([KEY])
    other = shell_of(database, 2, limits, ordering="none")
    database.coordinators[shell.id].state = "dead"
    other.claim_all()
    handled = []
    for _ in range(20):
        other.pass_time(0.1)
        handled += other.handle(100)
    assert handled == [*range(0, 60, 2), *range(60, 70)]


def test_all_claims_busy__waits_until_they_are_tried_again(database):
    database.published(1, 0, count=5)
    shell = shell_of(database)
    shell.handle(5)
    database.locked.add(KEY)
    exchanges = shell.engine.exchange_count
    shell.pass_time(1.0)  # asserts that no Wait is for a time that is over
    assert shell.engine.exchange_count - exchanges < 60
    database.locked.clear()
    shell.pass_time(0.1)
    assert finished(database, 5)


def many_failures():
    """A shell with 128 failures of each of eight partitions to write."""
    database = FakeDatabase({1: 8}, {1: [1]})
    for number in range(8):
        database.published(1, number, count=128)
    shell = shell_of(database, ordering="none", limits=Limits(max_in_flight=10_000), policy=RetryPolicy(max_attempts=1))
    messages = shell.start(10_000)
    shell.pass_time(0.1)
    messages += shell.start(10_000)
    assert len(messages) == 1024
    for message in messages:
        shell.nack(message)
    return shell, database


def test_failures__more_than_one_exchange_can_write__go_in_several():
    """Thousands at once, of many partitions, would take longer than a statement may; and then never be written."""
    shell, database = many_failures()
    sizes = []
    partitions = list(shell.engine.partitions.values())
    while any(partition.hard for partition in partitions):
        command = shell.engine.next_command(shell.now_s)
        assert isinstance(command, Exchange), "without a pause"
        sizes.append(len(command.hard))
        unwritten = [partition for partition in partitions if partition.hard]
        shell.answer(command)
        # Who waits for what is settled must not be told so before all of it is written.
        assert all(partition.saved_count < partition.settled_count for partition in unwritten)
    assert sizes == [500, 500, 24]
    shell.pass_time(0.1)
    assert sum(len(claim.dead) for claim in database.claims.values()) == 1024
    assert all(partition.saved_count == partition.settled_count for partition in partitions)


def test_failures__of_many_partitions__each_has_its_turn(monkeypatch):
    monkeypatch.setattr(loop, "_MAX_FAILURES", 10)
    shell, _ = many_failures()
    begun = set()
    for _ in range(8):
        command = shell.engine.next_command(shell.now_s)
        begun |= {entry["o"] for entry in command.hard}
        shell.answer(command)
    assert begun == set(range(1, 9))


def test_failures__not_written_yet__count_as_in_flight():
    """Handlers that fail at once are faster than what writes it; each failure has its error in memory until then."""
    database = FakeDatabase({1: 1}, {1: [1]})
    database.published(1, 0, count=64)
    shell = shell_of(database, ordering="none", limits=Limits(max_in_flight=10), policy=RetryPolicy(max_attempts=1))
    messages = shell.start(64)
    assert len(messages) == 10
    for message in messages[:7]:
        shell.nack(message)
    assert shell.start(64) == []
    shell.pass_time(0.1)
    assert len(shell.start(64)) == 7
    assert shell.engine.failing_count == 0


def test_failures__of_a_claim_that_is_locked__do_not_use_up_what_all_may_have_in_flight():
    database = FakeDatabase({1: 2}, {1: [1]})
    for number in range(2):
        database.published(1, number, count=400)
    limits = Limits(max_window=64, max_in_flight=100)
    shell = shell_of(database, ordering="none", limits=limits, policy=RetryPolicy(max_attempts=1))
    database.locked.add(KEY)
    handled = 0
    for _ in range(40):
        for message in shell.start(8):
            if message.partition == KEY.partition:
                shell.nack(message)
            else:
                handled += 1
                shell.ack(message)
        shell.pass_time(0.1)
    locked = shell.engine.partitions[KEY]
    assert 32 <= locked.unwritten_count < 32 + 8
    assert handled > 100
