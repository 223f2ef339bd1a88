"""Who gets what when members come, go, return under their static ids, or do not let go."""

import asyncio
import contextlib
import threading
import time

import pytest
from support.processes import Process, Task
from support.shell import GROUP, TOPIC, Reading, committed, drain, epochs, owners, publish, query, short, wait_until

from coordinator import AsyncCoordinator, Coordinator
from coordinator.errors import CoordinatorError, MemberReplacedError, NotFoundError


@pytest.fixture
def app(dsn):
    with Coordinator(dsn, client_id="test", settings=short(static_grace_s=60.0)) as made:
        made.create_topic(TOPIC, 4)
        yield made


def share(dsn):
    """Partitions by the static id of their owner."""
    rows = query(
        dsn,
        "select k.partition, c.static_id from coordinator.claims k "
        "left join coordinator.coordinators c on c.coordinator = k.owner order by k.partition",
    )
    return dict(rows)


def test_rolling_restart__static_ids__nothing_moves_and_nobody_else_takes_it_meanwhile(app, dsn):
    published = publish(app, 40)
    found = []
    with app.consumer(TOPIC, group=GROUP, static_id="b") as b:
        a = app.consumer(TOPIC, group=GROUP, static_id="a").start()
        wait_until(lambda: sorted(map(str, share(dsn).values())) == ["a", "a", "b", "b"], 30)
        before, epochs_before = share(dsn), epochs(dsn)
        for _ in range(2):
            a.close()
            assert [p for p, owner in share(dsn).items() if owner is None] == [p for p, o in before.items() if o == "a"]
            # b looks again and again, and leaves it alone.
            looked = b._runtime.engine.exchange_count
            found += drain(b, 40, 1.0)
            assert b._runtime.engine.exchange_count > looked
            assert "b" not in {share(dsn)[p] for p, owner in before.items() if owner == "a"}
            a = app.consumer(TOPIC, group=GROUP, static_id="a").start()
            wait_until(lambda: share(dsn) == before, 30)
        found += drain(a, 40 - len(found), 30)
        a.close()
    assert sorted(message.value for message in found) == published
    moved = {p for p in range(4) if epochs(dsn)[p] != epochs_before[p]}
    assert moved == {p for p, owner in before.items() if owner == "a"}


def test_sigkill__ten_in_flight__restarted_at_once_under_its_static_id__has_them_again_at_once(app, dsn, tmp_path):
    """Case 6. The lease is long: neither it nor a session that is missed is waited for, and charges count from now."""
    publish(app, 10)
    task = Task(
        dsn,
        TOPIC,
        GROUP,
        "same",
        mode="subscribe",
        work_s=3600,
        settings={"lease_s": 60, "heartbeat_s": 1, "rebalance_debounce_s": 0.1},
        options={"concurrency": 10, "ordering": "none"},
        static_id="same",
    )
    with Process(task, tmp_path) as first:
        wait_until(lambda: len(first.events("start")) == 10, 30)
        first.kill()
        killed_at = time.time()
        with Process(task, tmp_path, "again") as second:
            wait_until(lambda: len(second.events("start")) == 10, 30)
            joined_at = second.events("ready")[0]["at"]
            # Its start apart (an interpreter on a busy machine), and the delay that a first crash brings.
            print(
                f"ready {joined_at - killed_at:.1f} s, all again {second.events('start')[-1]['at'] - killed_at:.1f} s"
            )
            assert second.events("start")[-1]["at"] - joined_at < 10
    held = {(event["partition"], event["offset"]) for event in first.events("start")}
    assert held == {(event["partition"], event["offset"]) for event in second.events("start")}


def test_static_id__used_twice__the_older_ends_and_does_not_come_back(app, dsn):
    publish(app, 10)
    old = app.consumer(TOPIC, group=GROUP, static_id="x").start()
    wait_until(lambda: set(share(dsn).values()) == {"x"}, 30)
    (message,) = old.poll(1, 10)
    with app.consumer(TOPIC, group=GROUP, static_id="x") as new:
        with pytest.raises(CoordinatorError) as caught:
            wait_until(lambda: old.poll(1, 0.1) and False, 30)
        assert isinstance(caught.value.__cause__, MemberReplacedError)
        # It lives: what it was running is not suspected.
        wait_until(lambda: query(dsn, "select 1 from coordinator.crashes") == [], 30)
        assert {m.offset for m in drain(new, 10, 30) if m.partition == message.partition} >= {message.offset}
        old.close()
        assert set(share(dsn).values()) == {"x"}


def test_handler_hangs__its_partition_is_taken_by_force_past_the_deadline(app, dsn):
    with (
        Coordinator(dsn, client_id="slow", settings=short(drain_timeout_s=0.5, hand_over_margin_s=1.0)) as slow,
        Coordinator(dsn, client_id="next", settings=short(drain_timeout_s=0.5, hand_over_margin_s=1.0)) as other,
    ):
        for partition in range(4):
            publish(app, 1, start=partition, partition=partition)
        owner = slow.consumer(TOPIC, group=GROUP).start()
        hung = [owner.poll(1, 10)[0] for _ in range(4)]
        with other.consumer(TOPIC, group=GROUP) as heir:
            waiting = wait_until(lambda: app.hand_overs(GROUP), 30)
            assert {(one.client_id, one.target_client_id) for one in waiting} == {("slow", "next")}
            wait_until(lambda: sorted(owners(dsn).values()) == ["next", "next", "slow", "slow"], 30)
            assert app.hand_overs(GROUP) == []
            again = drain(heir, 2, 30)
            # Nobody has crashed, and nothing has failed.
            assert {message.attempt for message in again} == {1}
            for message in hung:
                with contextlib.suppress(CoordinatorError):
                    message.ack()
            wait_until(lambda: sum(committed(dsn).values()) == 4, 30)
        owner.close()


def test_cold_start__members_within_the_debounce__each_partition_is_claimed_once(dsn):
    with Coordinator(dsn, client_id="t", settings=short(rebalance_debounce_s=2.0)) as app:
        app.create_topic(TOPIC, 8)
        members = [app.consumer(TOPIC, group=GROUP) for _ in range(4)]
        threads = [threading.Thread(target=member.start) for member in members]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait_until(lambda: all(owner for owner in owners(dsn).values()), 30)
        assert set(epochs(dsn).values()) == {1}
        rows = query(dsn, "select count(*) from coordinator.claims group by owner")
        assert rows == [(2,)] * 4
        for member in members:
            member.close()


def test_drain__member__hands_over_what_it_has_and_takes_part_again_when_undone(app, dsn):
    with app.consumer(TOPIC, group=GROUP) as one, app.consumer(TOPIC, group=GROUP) as other:
        readers = [Reading(one), Reading(other)]
        wait_until(lambda: len({m.member_id for m in app.members() if m.partitions == 2}) == 2, 30)
        app.drain(one.member_id)
        wait_until(lambda: {str(m.member_id): m.partitions for m in app.members()}[other.member_id] == 4, 30)
        assert {str(m.member_id): m.state for m in app.members()}[one.member_id] == "draining"
        app.drain(one.member_id, on=False)
        wait_until(lambda: {m.partitions for m in app.members()} == {2}, 30)
        for reader in readers:
            reader.stop()
            assert reader.errors == []


def test_evict__member__comes_back_as_a_new_one(app, dsn):
    publish(app, 8)
    with app.consumer(TOPIC, group=GROUP) as consumer:
        (message,) = consumer.poll(1, 10)
        before = consumer.member_id
        app.evict(before)
        wait_until(lambda: consumer.member_id != before, 30)
        assert len(drain(consumer, 8, 30)) == 8
        with pytest.raises(NotFoundError):
            app.evict(before)
        assert message.attempt == 1


async def polled(consumer):
    while True:
        await consumer.poll(1, 0.1)


def test_asyncio__static_id_used_twice__the_older_ends(dsn):
    async def story():
        async with AsyncCoordinator(dsn, client_id="a", settings=short()) as app:
            await app.create_topic(TOPIC, 2)
            old = app.consumer(TOPIC, group=GROUP, static_id="x")
            await old.start()
            async with app.consumer(TOPIC, group=GROUP, static_id="x") as new:
                with pytest.raises(CoordinatorError) as caught:
                    await asyncio.wait_for(polled(old), 30)
                assert isinstance(caught.value.__cause__, MemberReplacedError)
                await app.publish(TOPIC, 1)
                assert [m.value for m in await new.poll(1, 30)] == [1]
                await old.close()
                members = await app.members()
                assert [(m.static_id, m.state) for m in members] == [("x", "alive")]
                assert await app.hand_overs() == []

    asyncio.run(story())
