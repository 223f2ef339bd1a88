"""Several consumers of a group: who owns what, that it is even, that it comes to rest, and that hand-overs repeat nothing."""

import time

import pytest
from support.shell import GROUP, TOPIC, Reading, committed, epochs, owners, publish, query, short, wait_until

from coordinator import Coordinator

PARTITIONS = 8


@pytest.fixture
def app(dsn):
    with Coordinator(dsn, client_id="publisher", settings=short()) as made:
        made.create_topic(TOPIC, PARTITIONS)
        yield made


@pytest.fixture
def join(dsn):
    """Start consumers that read in threads of their own."""
    readings = []

    def start(client_id, *, wait=False):
        app = Coordinator(dsn, client_id=client_id, settings=short())
        readings.append(Reading(app.consumer(TOPIC, group=GROUP).start(), wait=wait))
        return readings[-1]

    yield start
    for reading in readings:
        reading.stop()


def shares(dsn):
    """How many partitions each owner has; None stands for nobody."""
    held = list(owners(dsn).values())
    return {owner: held.count(owner) for owner in held}


def wait_shares(dsn, **wanted):
    wait_until(lambda: shares(dsn) == wanted, 10, f"shares {wanted}")


def test_group__one_two_three_members__share_evenly_and_then_nothing_moves(app, dsn, join):
    first = join("a")
    wait_shares(dsn, a=8)
    assert first.consumer.assignment() == {(TOPIC, number) for number in range(8)}
    second = join("b")
    wait_shares(dsn, a=4, b=4)
    wait_until(lambda: len(first.consumer.assignment()) == len(second.consumer.assignment()) == 4)
    assert not first.consumer.assignment() & second.consumer.assignment()
    join("c")
    wait_until(lambda: sorted(shares(dsn).values()) == [2, 3, 3] and None not in shares(dsn))
    before = epochs(dsn)
    # Ten looks at the membership by each of them.
    time.sleep(2)
    assert epochs(dsn) == before


def test_group__member_joins__takes_only_what_balance_needs(app, dsn, join):
    join("a")
    wait_shares(dsn, a=8)
    join("b")
    wait_shares(dsn, a=4, b=4)
    assert sorted(epochs(dsn).values()) == [1] * 4 + [2] * 4


def test_group__member_leaves__the_others_have_its_partitions_at_once(app, dsn, join):
    join("a")
    leaver = join("b")
    wait_shares(dsn, a=4, b=4)
    started_s = time.monotonic()
    leaver.stop()
    wait_shares(dsn, a=8)
    # Less than a lease: what is released needs no waiting.
    assert time.monotonic() - started_s < 1.2


def test_group__more_members_than_partitions__the_rest_waits_and_steps_in(app, dsn, join):
    app.create_topic("single", 1)
    first = Coordinator(dsn, client_id="a", settings=short()).consumer("single", group="one").start()
    second = Coordinator(dsn, client_id="b", settings=short()).consumer("single", group="one")
    try:
        # Before the other joins: of two that join together either may get it.
        wait_until(lambda: owners(dsn, "one") == {0: "a"})
        second.start()
        app.publish("single", 1)
        (message,) = first.poll(1, 5)
        message.ack()
        first.close()
        app.publish("single", 2)
        (message,) = second.poll(1, 5)
        assert message.value == 2
    finally:
        first.close()
        second.close()


def test_hand_over__under_load__repeats_nothing_and_loses_nothing(app, dsn, join):
    """Members come and go while messages flow; every release is graceful, so nothing may be delivered twice."""
    readings = [join("a")]
    published = []
    for step in range(6):
        published += publish(app, 150, start=step * 150)
        if step in (1, 2):
            readings.append(join("bc"[step - 1]))
        if step == 4:
            readings[1].stop()
        time.sleep(0.15)
    wait_until(lambda: sum(committed(dsn).values()) == len(published), 20, "everything settled")
    for reading in readings:
        assert reading.errors == []
    values = [value for reading in readings for value in reading.values]
    assert sorted(values) == published
    assert {attempt for reading in readings for _, _, _, attempt in reading.deliveries} == {1}
    per_partition = {}
    for partition, offset, epoch, _ in (found for reading in readings for found in reading.deliveries):
        per_partition.setdefault(partition, []).append((epoch, offset))
    for found in per_partition.values():
        # Later epochs have later offsets: order goes over the hand-over, too.
        assert [offset for _, offset in sorted(found)] == sorted(offset for _, offset in found)


def test_hand_over__message_in_hand__is_finished_by_who_has_it(app, dsn):
    """The old owner keeps a partition until what it has in hand is settled; the new one goes on behind it."""
    publish(app, 3, partition=0)
    old = Coordinator(dsn, client_id="old", settings=short()).consumer(TOPIC, group=GROUP).start()
    new = Coordinator(dsn, client_id="new", settings=short()).consumer(TOPIC, group=GROUP)
    try:
        (held,) = old.poll(1, 5)
        assert held.partition == 0
        new.start()
        wait_until(lambda: shares(dsn).get("new", 0) >= 3)
        time.sleep(0.5)
        assert owners(dsn)[0] == "old"
        held.ack(wait=True)
        wait_until(lambda: sorted(shares(dsn).values()) == [4, 4])
        rest = old if owners(dsn)[0] == "old" else new
        (following,) = rest.poll(1, 5)
        assert (following.offset, following.attempt) == (1, 1)
    finally:
        old.close()
        new.close()


def test_group__rows_of_members_that_left__are_gone(app, dsn, join):
    for name in "abc":
        join(name).stop()
    assert query(dsn, "select count(*) from coordinator.coordinators") == [(0,)]
    assert query(dsn, "select count(*) from coordinator.members") == [(0,)]


def test_claim_dropped_after_a_doubt__meant_for_another_meanwhile__is_handed_over_at_once(app, dsn, join):
    """The old owner does not hold it, the new one waits for it: it lay about for `hand_over_s`, and was taken by force then."""
    first = join("a")
    wait_shares(dsn, a=8)
    runtime = first.consumer._runtime
    with runtime.lock:
        # While its looks wait for the lock, another one joins, and plans.
        joined = join("b")
        wait_until(lambda: planned_for(dsn, "b") == 4, 10, "a plan that gives b its share")
        runtime.engine.drop(list(runtime.engine.partitions))
    started_s = time.monotonic()
    wait_shares(dsn, a=4, b=4)
    assert time.monotonic() - started_s < short().hand_over_s / 2
    assert joined.errors == []


def planned_for(dsn, client_id):
    ((count,),) = query(
        dsn,
        "select count(*) from coordinator.targets t join coordinator.coordinators c using (coordinator) where c.client_id = %s",
        client_id,
    )
    return count
