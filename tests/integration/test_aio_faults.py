"""What goes wrong around an asyncio consumer: cancellations, a blocked loop, lost connections, a server that restarts."""

import asyncio
import contextlib
import random
import threading
import time
from collections import Counter

import pytest
from support.aio import Running, coordinator, drain, in_loop, publish, until, until_read
from support.proxy import Fault, Proxy, backend_count
from support.shell import GROUP, TOPIC, committed, query, short, terminate, wait_until

from coordinator import AsyncCoordinator, Coordinator, Outgoing
from coordinator.db.schema import install
from coordinator.db.uninterrupted import uninterrupted
from coordinator.embedded import EmbeddedServer
from coordinator.errors import CoordinatorError, FencedError

STORM = 1000


@pytest.mark.direct("PgBouncer 1.18 dies where a cancel is broken off")
@in_loop
async def test_cancellation__a_thousand_operations_at_random_points__leave_no_connection(dsn):
    """Case 17. What was cancelled may have happened or not; what was published is read once, and every connection is back."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    query(dsn, "create table effects (value text primary key)")
    async with coordinator(dsn, pool_size=4) as app:
        await app.create_topic(TOPIC, 4)
        shared = await app.consumer(TOPIC, group=GROUP).start()
        taken = []

        async def publish_one(number):
            await app.publish(TOPIC, number)

        async def publish_many(number):
            await app.publish_many(TOPIC, [Outgoing([number, place]) for place in range(20)])

        async def poll(_number):
            for message in await shared.poll(5, 0.05):
                taken.append(message)
                await message.ack(wait=True)

        async def transactional(number):
            for message in await shared.poll(1, 0.05):
                async with message.transaction() as connection:
                    place = f"{message.partition}@{message.offset}"
                    await connection.execute("insert into effects values (%s)", (place,))
                    await asyncio.sleep(0.002 * chance.random())

        async def commit(_number):
            await shared.commit()

        async def look(_number):
            await app.topics()

        async def short_life(number):
            async with app.consumer(TOPIC, group=f"short-{number % 3}") as consumer:
                await consumer.poll(1, 0.01)

        kinds = [publish_one, publish_many, poll, transactional, commit, look] * 3 + [short_life]
        limit = asyncio.Semaphore(8)
        ended = Counter()

        async def one(number):
            async with limit:
                operation = asyncio.create_task(chance.choice(kinds)(number))
                await asyncio.sleep(chance.choice((0.0, 0.002, 0.01, 0.03)) * chance.random())
                for _ in range(chance.choice((1, 1, 2))):
                    operation.cancel()
                    await asyncio.sleep(0.001 * chance.random())
                started_s = time.monotonic()
                await asyncio.wait([operation], timeout=20)
                assert operation.done()
                assert time.monotonic() - started_s < 10
                if operation.cancelled():
                    ended["cancelled"] += 1
                else:
                    error = operation.exception()
                    assert error is None or isinstance(error, FencedError), repr(error)
                    ended["done"] += 1

        await asyncio.gather(*(one(number) for number in range(STORM)))
        assert ended["cancelled"] > 100
        # Everything works, with all of the pool at once; nothing is left in a transaction.
        await asyncio.wait_for(asyncio.gather(*(app.publish(TOPIC, "after") for _ in range(20))), 10)
        await until(
            lambda: (
                query(
                    dsn,
                    "select count(*) from pg_stat_activity where state like 'idle in transaction%%' "
                    "and datname = current_database()",
                )
                == [(0,)]
            )
        )
        assert backend_count(dsn, "coordinator pool") <= 4
        await drain(shared, 100_000, 3)
        started_s = time.monotonic()
        await shared.close()
        assert time.monotonic() - started_s < 5
    await until(lambda: backend_count(dsn, "coordinator") == 0)
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert not left


@in_loop
async def test_uninterrupted__first_cancellation_waits_second_ends(dsn):
    ended = []

    async def work():
        try:
            await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        ended.append("whole")

    for times, expected in ((1, "whole"), (2, "cancelled")):
        task = asyncio.create_task(uninterrupted(work()))
        for _ in range(times):
            await asyncio.sleep(0.02)
            task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(0)
        assert task.cancelled()
        assert ended.pop() == expected


@pytest.mark.direct("counts the sessions of a client on the server")
@in_loop
async def test_close__cancelled__closes_the_connections(dsn):
    async with coordinator(dsn) as app:
        await app.create_topic(TOPIC, 1)
        for place in range(20):
            consumer = await app.consumer(TOPIC, group=GROUP).start()
            closing = asyncio.create_task(consumer.close())
            await asyncio.sleep(place * 0.001)
            closing.cancel()
            await asyncio.wait([closing])
        await until(lambda: backend_count(dsn, "coordinator work") + backend_count(dsn, "coordinator control") == 0)


@in_loop
async def test_close__cancelled__claims_are_free_and_acks_are_written(dsn):
    """Nobody has to wait for the lease of somebody whose close was cut off by a timeout."""
    async with coordinator(dsn, lease_s=60, visibility_timeout_s=60) as app:
        await app.create_topic(TOPIC, 2)
        for place in range(6):
            await publish(app, 2, start=2 * place)
            consumer = await app.consumer(TOPIC, group=GROUP, ordering="none").start()
            taken = []
            while len(taken) < 2:
                taken += await consumer.poll(2, 5)
            assert {message.attempt for message in taken} == {1}
            for message in taken:
                message.ack()
            closing = asyncio.create_task(consumer.close())
            await asyncio.sleep(place * 0.002)
            closing.cancel()
            await asyncio.wait([closing])
            assert query(dsn, "select count(*) from coordinator.claims where owner is not null") == [(0,)]
            assert query(dsn, "select count(*) from coordinator.members") == [(0,)]
        assert sum(offset.lag for offset in await app.group_offsets(GROUP)) == 0


@in_loop
async def test_close__cancelled_twice_without_a_server__returns(dsn):
    with Proxy(dsn) as proxy:
        app = coordinator(proxy.dsn, commit_timeout_s=30)
        await app.create_topic(TOPIC, 1)
        consumer = await app.consumer(TOPIC, group=GROUP).start()
        await consumer.poll(1, 0.1)
        proxy.put(Fault(swallow_up=True, swallow_down=True))
        closing = asyncio.create_task(consumer.close())
        for _ in range(2):
            await asyncio.sleep(0.2)
            closing.cancel()
        # Not the thirty seconds that it might have taken.
        async with asyncio.timeout(15):
            await asyncio.wait([closing])
        assert closing.cancelled()
        await app.close()


@in_loop
async def test_blocked_loop__five_timeouts__runs_once_and_a_warning_names_why(dsn, caplog):
    """Case 7: nobody else wants the partition."""
    async with coordinator(dsn, visibility_timeout_s=0.4, lease_s=20) as app:
        await app.create_topic(TOPIC, 1)
        await publish(app, 2, partition=0)
        seen = []

        @app.subscribe(TOPIC, group=GROUP)
        async def book(message):
            seen.append((message.value, message.attempt))
            if message.value == 0:
                time.sleep(2.0)  # noqa: ASYNC251 - the fault itself

        async with Running(app):
            await until_read(app)
        assert sorted(seen) == [(0, 1), (1, 1)]
        (told,) = [record for record in caplog.records if record.msg == "handler.blocked_loop"]
        assert told.blocked_s > 1.5
        assert told.levelname == "WARNING"


@in_loop
async def test_sleeping_handler__five_timeouts__runs_once_without_that_warning(dsn, caplog):
    async with coordinator(dsn, visibility_timeout_s=0.4) as app:
        await app.create_topic(TOPIC, 1)
        await publish(app, 1, partition=0)
        seen = []

        @app.subscribe(TOPIC, group=GROUP)
        async def book(message):
            seen.append(message.attempt)
            await asyncio.sleep(2.0)

        async with Running(app):
            await until_read(app)
        assert seen == [1]
        assert "handler.slow" in [record.msg for record in caplog.records]
        assert "handler.blocked_loop" not in [record.msg for record in caplog.records]


@in_loop
async def test_blocked_loop__past_the_lease__another_member_runs_it_and_there_is_one_effect(dsn, caplog):
    """Case 7, where the deadline cannot be moved on: the lease is gone, and the message with it."""
    query(dsn, "create table effects (who text)")
    async with coordinator(dsn) as app:
        await app.create_topic(TOPIC, 1)
        await publish(app, 1, partition=0)
        blocked, seen = threading.Event(), []

        @app.subscribe(TOPIC, group=GROUP, transactional=True)
        async def book(message, connection):
            seen.append("first")
            await connection.execute("insert into effects values ('first')")
            if not blocked.is_set():
                blocked.set()
                time.sleep(5.0)  # noqa: ASYNC251 - the fault itself

        def elsewhere():
            blocked.wait(10)
            other = Coordinator(dsn, client_id="other", settings=short())
            with other, other.consumer(TOPIC, group=GROUP) as consumer:
                (message,) = consumer.poll(1, 8)
                with message.transaction() as connection:
                    connection.execute("insert into effects values ('second')")
                seen.append("second")

        thread = threading.Thread(target=elsewhere)
        thread.start()
        async with Running(app):
            await until(lambda: len(seen) == 2, 15)
            await until_read(app)
            await asyncio.to_thread(thread.join, 10)
            # The fenced member comes back, and works.
            await publish(app, 1, partition=0)
            await until(lambda: seen.count("first") == 2, 10)
            await until_read(app)
        assert query(dsn, "select who from effects order by who") == [("first",), ("second",)]
        assert "handler.blocked_loop" in [record.msg for record in caplog.records]
        assert "ack.refused" in [record.msg for record in caplog.records]


@in_loop
async def test_zombie__loop_blocked_past_the_lease__acks_are_refused_and_it_rejoins(dsn):
    async with coordinator(dsn) as app:
        await app.create_topic(TOPIC, 1)
        await publish(app, 5, partition=0)
        async with app.consumer(TOPIC, group=GROUP) as zombie:
            held = await zombie.poll(5, 5)
            before = zombie.member_id
            taken_over, release = threading.Event(), threading.Event()

            def elsewhere():
                other = Coordinator(dsn, client_id="other", settings=short())
                with other, other.consumer(TOPIC, group=GROUP) as consumer:
                    count = 0
                    while count < 5:
                        for message in consumer.poll(5, 1):
                            message.ack(wait=True)
                            count += 1
                    taken_over.set()
                    release.wait(10)

            thread = threading.Thread(target=elsewhere)
            thread.start()
            assert taken_over.wait(15)
            refused = 0
            for message in held:
                try:
                    await message.ack(wait=True)
                except FencedError:
                    refused += 1
            assert refused == 5
            with pytest.raises(FencedError):
                held[0].nack()
            release.set()
            await asyncio.to_thread(thread.join, 10)
            await publish(app, 3, partition=0)
            assert len(await drain(zombie, 3)) == 3
            assert zombie.member_id != before
        assert committed(dsn) == {0: 8}


@pytest.mark.direct("a listener needs a session")
@in_loop
async def test_listen__its_backend_is_ended__wake_ups_are_back(dsn):
    async with coordinator(dsn, poll_max_s=5) as app:
        await app.create_topic(TOPIC, 1)
        async with app.consumer(TOPIC, group=GROUP) as consumer:
            assert await consumer.poll(1, 0.3) == []
            for _ in range(3):
                assert terminate(dsn, "coordinator control") == 1
                await until(lambda: backend_count(dsn, "coordinator control") == 1)
                await asyncio.sleep(1.0)
                published_s = time.monotonic()
                await app.publish(TOPIC, 1, partition=0)
                (message,) = await consumer.poll(1, 5)
                assert time.monotonic() - published_s < 0.5
                await message.ack(wait=True)


@in_loop
async def test_work_backend__ended_again_and_again__nothing_lost_nothing_confirmed_comes_twice(dsn):
    async with coordinator(dsn) as app:
        await app.create_topic(TOPIC, 4)
        numbers = await publish(app, 300)
        confirmed = []
        async with app.consumer(TOPIC, group=GROUP) as consumer:

            async def read():
                async for message in consumer:
                    with contextlib.suppress(FencedError):
                        await message.ack(wait=True)
                        confirmed.append(message.value)

            reading = asyncio.create_task(read())
            for _ in range(5):
                await asyncio.sleep(0.2)
                terminate(dsn, "coordinator work")
            await until(lambda: len(confirmed) >= 300, 20)
            assert sorted(confirmed) == numbers
            await consumer.close()
            await asyncio.wait_for(reading, 5)


@pytest.fixture(scope="module")
def own_server():
    """A private one, which these tests may harm."""
    with EmbeddedServer.start(tcp=True) as server:
        install(server.dsn)
        yield server


@pytest.mark.parametrize("mode", ["fast", "immediate"])
@in_loop
async def test_server__restarted_under_load__nothing_lost_and_the_loops_live(own_server, mode):
    """Case 13 on asyncio."""
    topic, group = f"orders-{mode}", f"ledger-{mode}"
    async with AsyncCoordinator(own_server.dsn, client_id="test", settings=short()) as app:
        await app.create_topic(topic, 4)
        sure, seen, stop = [], Counter(), False

        @app.subscribe(topic, group=group, concurrency=10, retry=[0.1])
        async def book(message):
            await asyncio.sleep(0.001)
            seen[message.value] += 1

        async def publishing():
            number = 0
            while not stop:
                with contextlib.suppress(CoordinatorError):
                    await app.publish(topic, number, key=str(number))
                    sure.append(number)
                number += 1
                await asyncio.sleep(0.005)

        async with Running(app) as running:
            load = asyncio.create_task(publishing())
            for _ in range(3):
                await asyncio.sleep(0.6)
                await asyncio.to_thread(own_server.restart, mode)
                done = len(sure)
                await until(lambda done=done: len(sure) > done + 20, 15, "publishing goes on")
            stop = True
            await load
            await until(lambda: seen.keys() >= set(sure), 20, "everything handled")
            assert not running.task.done()
        assert running.code == 0
    wait_until(lambda: backend_count(own_server.dsn, "coordinator") == 0)
