"""What a taker is handed ahead: only to quick ones, and back at once when anything else needs it."""

import pytest
from support.engine_driver import Shell
from support.fake_database import FakeDatabase

from coordinator.core.ahead import STALL_S, Ahead
from coordinator.model import PartitionKey

KEY = PartitionKey(1, 1, 0)
PUBLISHED = 400


@pytest.fixture
def shell():
    database = FakeDatabase({1: 1}, {1: [1]})
    made = Shell(database, ordering="none")
    made.claim_all()
    database.published(1, 0, count=PUBLISHED)
    made.until_waiting()
    return made


def take_one(shell, ahead):
    message = ahead.start()
    if message is None:
        taken = shell.engine.take(shell.subscriptions, 1, shell.now_s, ahead)
        message = taken[0] if taken else None
    return message


def quick(shell, count=12):
    """A taker that has done some messages in no time, and holds some ahead."""
    ahead = shell.engine.open_ahead()
    done = []
    while len(done) < count or not ahead.messages:
        message = take_one(shell, ahead)
        shell.engine.ack(message, shell.now_s)
        done.append(message.offset)
    return ahead, done


def test_taker__quick__is_handed_some_ahead_in_order(shell):
    ahead, done = quick(shell)
    assert done == list(range(len(done)))
    assert [message.offset for message in ahead.messages] == list(range(len(done), len(done) + len(ahead.messages)))
    assert len(shell.engine.partitions[KEY].in_flight) == len(ahead.messages)


def test_taker__quick_in_the_order_of_a_partition__is_handed_nothing_ahead():
    """Whether the message before is settled, or has failed, nobody asks who starts what is ahead."""
    database = FakeDatabase({1: 1}, {1: [1]})
    shell = Shell(database, ordering="partition")
    shell.claim_all()
    database.published(1, 0, count=PUBLISHED)
    shell.until_waiting()
    ahead = shell.engine.open_ahead()
    for offset in range(50):
        message = take_one(shell, ahead)
        assert (message.offset, len(ahead.messages)) == (offset, 0)
        assert take_one(shell, ahead) is None
        shell.engine.ack(message, shell.now_s)


def test_taker__slow__is_handed_one(shell):
    ahead = shell.engine.open_ahead()
    for offset in range(10):
        message = take_one(shell, ahead)
        assert (message.offset, len(ahead.messages)) == (offset, 0)
        shell.now_s += 0.001
        shell.engine.ack(message, shell.now_s)


def test_stalled__after_a_moment__goes_back_uncharged_and_in_order(shell):
    ahead, _done = quick(shell)
    stuck = take_one(shell, ahead)
    shell.pass_time(STALL_S / 2)
    assert ahead.messages
    shell.pass_time(STALL_S)
    assert not ahead.messages
    assert list(shell.engine.partitions[KEY].in_flight) == [stuck.offset]
    again = shell.start(3)
    assert [message.offset for message in again] == [stuck.offset + 1, stuck.offset + 2, stuck.offset + 3]
    assert {message.attempt for message in again} == {1}


def test_other_taker__finds_nothing__gets_what_was_not_started(shell):
    ahead, _done = quick(shell)
    held = [message.offset for message in ahead.messages]
    read = len(shell.engine.partitions[KEY].ready)
    assert len(shell.start(PUBLISHED)) == read
    assert [message.offset for message in shell.start(PUBLISHED)] == held
    assert not ahead.messages


@pytest.mark.parametrize("event", ["revoke", "drain", "pause", "stand_still", "lease"])
def test_event__that_stops_what_starts__takes_it_back(shell, event):
    engine = shell.engine
    ahead, _ = quick(shell)
    if event == "revoke":
        engine.revoke([KEY])
    elif event == "drain":
        engine.drain()
    elif event == "pause":
        engine.pause(shell.subscriptions, paused=True)
    elif event == "stand_still":
        engine.stand_still(frozenset({KEY}))
    else:
        shell.now_s = engine.lease_until_s
        assert engine.take(shell.subscriptions, 1, shell.now_s, ahead) == []
    assert not ahead.messages
    assert not engine.partitions[KEY].in_flight
    assert take_one(shell, ahead) is None


def test_claim__lost__starts_nothing_of_it(shell):
    ahead, _ = quick(shell)
    shell.engine.drop([KEY])
    assert ahead.messages
    assert ahead.start() is None


def test_abandoned__is_no_delivery_that_was_given_back(shell):
    """It was never started, so no late ack of it is to be waited for."""
    _ahead, _ = quick(shell)
    assert shell.engine.abandon(shell.subscriptions) == 0


def test_closed__goes_back(shell):
    ahead, _ = quick(shell)
    shell.engine.close_ahead(ahead)
    assert not ahead.messages
    assert ahead not in shell.engine.aheads


def test_counts__of_what_was_started__do_not_count_what_went_back(shell):
    _ahead, done = quick(shell)
    shell.engine.reclaim()
    assert shell.engine.partitions[KEY].window.started_count == len(done)


def test_both_sides__pop_each_message_once():
    """A taker in a thread of its own, and an engine that takes back: nothing twice, nothing lost."""
    import threading

    ahead = Ahead()

    class Owner:
        lost = False

    class Thing:
        owner = Owner

    things = [Thing() for _ in range(20_000)]
    started, taken_back, over = [], [], threading.Event()

    def start():
        while not over.is_set() or ahead.messages:
            message = ahead.start()
            if message is not None:
                started.append(message)

    taker = threading.Thread(target=start)
    taker.start()
    for place in range(0, len(things), 20):
        ahead.fill(things[place : place + 20], 0.0)
        taken_back += ahead.take_back()
    over.set()
    taker.join(30)
    assert len(started) + len(taken_back) == len(things)
    assert {id(thing) for thing in started + taken_back} == {id(thing) for thing in things}
