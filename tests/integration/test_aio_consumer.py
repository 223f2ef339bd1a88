"""The explicit consumer on asyncio."""

import asyncio
import contextlib
import gc
import time
import warnings

import pytest
from support.aio import coordinator, drain, in_loop, publish, until
from support.proxy import backend_count
from support.shell import GROUP, TOPIC, committed, query, wait_until

from coordinator import AsyncCoordinator
from coordinator.errors import ConfigError, NotFoundError, StaleEpochError


@in_loop
async def test_publish_consume_ack_restart__the_second_consumer_goes_on_where_the_first_left(dsn):
    async with coordinator(dsn) as app:
        await app.create_topic(TOPIC, 4)
        await publish(app, 20)
        async with app.consumer(TOPIC, group=GROUP) as consumer:
            first = [message.value for message in await drain(consumer, 12)]
        async with app.consumer(TOPIC, group=GROUP) as consumer:
            second = [message.value for message in await drain(consumer, 8)]
            assert await consumer.at_end()
            assert consumer.assignment() == {(TOPIC, number) for number in range(4)}
        assert consumer.assignment() == set()
        assert sorted(first + second) == list(range(20))
        assert sum(committed(dsn).values()) == 20


@in_loop
async def test_faces__have_the_same_names(dsn):
    from coordinator import AsyncConsumer, Consumer, Coordinator

    for plain, twin in ((Coordinator, AsyncCoordinator), (Consumer, AsyncConsumer)):
        names = {name for name in vars(plain) if not name.startswith("_")}
        assert names <= {name for name in dir(twin) if not name.startswith("_")}


@in_loop
async def test_face__topics_rotate_peek_groups_members(dsn):
    async with coordinator(dsn) as app:
        assert await app.create_topic(TOPIC, 2)
        await publish(app, 3, partition=1)
        assert [topic.name for topic in await app.topics()] == [TOPIC]
        assert await app.rotate(TOPIC) == (await app.topic(TOPIC)).segment
        assert [message.value for message in await app.peek(TOPIC)] == [0, 1, 2]
        assert [message.value for message in await app.peek(TOPIC, partition=1, from_offset=1, limit=1)] == [1]
        with pytest.raises(TypeError):
            (await app.peek(TOPIC))[0].ack()
        async with app.consumer(TOPIC, group=GROUP) as consumer:
            assert [group.name for group in await app.groups()] == [GROUP]
            assert [str(member.member_id) for member in await app.group_members(GROUP)] == [consumer.member_id]
            assert {place.partition for place in await app.group_offsets(GROUP)} == {0, 1}
        with pytest.raises(NotFoundError):
            await app.group_offsets("nobody")


@in_loop
async def test_iterator__closed_by_another_task__ends(dsn):
    async with coordinator(dsn) as app:
        await app.create_topic(TOPIC, 2)
        await publish(app, 5)
        consumer = app.consumer(TOPIC, group=GROUP)
        seen = []

        async def read():
            async for message in consumer:
                seen.append(message.value)
                message.ack()

        reading = asyncio.create_task(read())
        await until(lambda: len(seen) == 5)
        await consumer.close()
        await consumer.close()
        await asyncio.wait_for(reading, 5)
        assert await consumer.poll() == []
        assert sum(committed(dsn).values()) == 5


@in_loop
async def test_ack__not_awaited__acts_at_once_and_nobody_warns(dsn):
    async with coordinator(dsn) as app:
        await app.create_topic(TOPIC, 1)
        await publish(app, 3, partition=0)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            async with app.consumer(TOPIC, group=GROUP, ordering="partition") as consumer:
                for place in range(3):
                    (message,) = await consumer.poll(1, 5)
                    if place == 1:
                        await message.ack()
                    else:
                        message.ack()
            gc.collect()
        assert not caught
        assert committed(dsn) == {0: 3}


@in_loop
async def test_ack__with_wait__returns_when_another_connection_sees_it(dsn):
    async with coordinator(dsn, linger_s=5) as app:
        await app.create_topic(TOPIC, 1)
        await publish(app, 5, partition=0)
        async with app.consumer(TOPIC, group=GROUP, ordering="partition") as consumer:
            for place in range(3):
                (message,) = await consumer.poll(1, 5)
                await message.ack(wait=True)
                assert committed(dsn)[0] == place + 1
            (message,) = await consumer.poll(1, 5)
            message.ack()
            await consumer.commit()
            assert committed(dsn)[0] == 4


@in_loop
async def test_ack__claim_taken_over_before_it_is_written__is_refused_and_changes_nothing(dsn):
    async with coordinator(dsn) as app:
        await app.create_topic(TOPIC, 1)
        await publish(app, 3, partition=0)
        async with app.consumer(TOPIC, group=GROUP) as consumer:
            taken = await consumer.poll(3, 5)
            query(dsn, "update coordinator.claims set epoch = epoch + 1, owner = gen_random_uuid()")
            with pytest.raises(StaleEpochError):
                await taken[0].ack(wait=True)
            with pytest.raises(StaleEpochError):
                taken[1].ack()
            with pytest.raises(StaleEpochError):
                taken[2].nack()
        assert committed(dsn) == {0: 0}


@in_loop
async def test_batches__come_in_lists_and_an_empty_one_after_the_timeout(dsn):
    async with coordinator(dsn) as app:
        await app.create_topic(TOPIC, 1)
        await publish(app, 7, partition=0)
        async with app.consumer(TOPIC, group=GROUP) as consumer:
            sizes = []
            async for batch in consumer.batches(3, 0.3):
                sizes.append(len(batch))
                # One before the first message is none of those after the last.
                if not batch and sum(sizes) == 7:
                    break
                for message in batch:
                    message.ack()
        assert sum(sizes) == 7
        assert max(sizes) <= 3
        assert committed(dsn) == {0: 7}


@in_loop
async def test_auto_ack__settles_what_the_call_before_returned(dsn):
    async with coordinator(dsn) as app:
        await app.create_topic(TOPIC, 1)
        await publish(app, 3, partition=0)
        async with app.consumer(TOPIC, group=GROUP, auto_ack=True, ordering="partition") as consumer:
            await consumer.poll(1, 5)
            await consumer.poll(1, 5)
            await consumer.commit()
            assert committed(dsn) == {0: 1}
        assert committed(dsn) == {0: 2}
        with contextlib.suppress(ZeroDivisionError):
            async with app.consumer(TOPIC, group=GROUP, auto_ack=True) as consumer:
                await consumer.poll(1, 5)
                _ = 1 // 0
        assert committed(dsn) == {0: 2}


@in_loop
async def test_pause__hands_nothing_over_until_resume(dsn):
    async with coordinator(dsn) as app:
        await app.create_topic(TOPIC, 1)
        async with app.consumer(TOPIC, group=GROUP) as consumer:
            consumer.pause()
            await publish(app, 3, partition=0)
            assert await consumer.poll(1, 0.5) == []
            consumer.resume()
            assert len(await consumer.poll(3, 5)) == 3


@in_loop
async def test_transaction__effects_and_ack_together_or_neither(dsn):
    import psycopg

    query(dsn, "create table effects (offset_ bigint)")
    async with coordinator(dsn) as app:
        await app.create_topic(TOPIC, 1)
        await publish(app, 3, partition=0)
        async with app.consumer(TOPIC, group=GROUP, ordering="partition") as consumer:
            (first,) = await consumer.poll(1, 5)
            with contextlib.suppress(ZeroDivisionError):
                async with first.transaction() as connection:
                    await connection.execute("insert into effects values (0)")
                    _ = 1 // 0
            async with first.transaction() as connection:
                await connection.execute("insert into effects values (0)")
                raise psycopg.Rollback
            assert query(dsn, "select * from effects") == []
            async with first.transaction() as connection:
                await connection.execute("insert into effects values (0)")
            assert query(dsn, "select * from effects") == [(0,)]
            (second,) = await consumer.poll(1, 5)
            own = await psycopg.AsyncConnection.connect(dsn)
            async with own, second.transaction(own) as connection:
                assert connection is own
                await connection.execute("insert into effects values (1)")
            own = await psycopg.AsyncConnection.connect(dsn)
            (third,) = await consumer.poll(1, 5)
            await own.execute("select 1")
            with pytest.raises(ConfigError):
                async with third.transaction(own):
                    pass
            await own.close()
            with psycopg.connect(dsn) as wrong, pytest.raises(ConfigError):
                async with third.transaction(wrong):
                    pass
        assert query(dsn, "select * from effects") == [(0,), (1,)]
        assert committed(dsn) == {0: 2}


@in_loop
async def test_poll__cancelled__has_taken_nothing(dsn):
    async with coordinator(dsn, visibility_timeout_s=30) as app:
        await app.create_topic(TOPIC, 1)
        async with app.consumer(TOPIC, group=GROUP) as consumer:
            assert await consumer.poll(1, 0.5) == []
            for place in range(100):
                polling = asyncio.create_task(consumer.poll(1, 5))
                await asyncio.sleep(0)
                await app.publish(TOPIC, place, partition=0)
                await asyncio.sleep(place % 5 * 0.001)
                polling.cancel()
                await asyncio.wait([polling])
                if not polling.cancelled():
                    for message in polling.result():
                        message.ack()
            await drain(consumer, 100, 2)
            assert await consumer.at_end()
        assert committed(dsn) == {0: 100}


@in_loop
async def test_two_consumers__share_the_partitions(dsn):
    async with coordinator(dsn) as app:
        await app.create_topic(TOPIC, 8)
        async with app.consumer(TOPIC, group=GROUP) as first, app.consumer(TOPIC, group=GROUP) as second:
            runtimes = first._runtime, second._runtime
            await until(lambda: [len(runtime.engine.partitions) for runtime in runtimes] == [4, 4])
            await publish(app, 100)
            seen = await asyncio.gather(drain(first, 100, 2), drain(second, 100, 2))
            assert sorted(message.value for part in seen for message in part) == list(range(100))
            assert all(seen)
            started_s = asyncio.get_running_loop().time()
            await second.close()
            await until(lambda: len(runtimes[0].engine.partitions) == 8, 3)
            assert asyncio.get_running_loop().time() - started_s < 3


@pytest.mark.direct("counts the sessions of a client on the server")
@in_loop
async def test_start__unknown_topic__raises_and_leaves_nothing_behind(dsn):
    async with coordinator(dsn) as app:
        consumer = app.consumer("missing", group=GROUP)
        with pytest.raises(NotFoundError):
            await consumer.start()
        assert query(dsn, "select count(*) from coordinator.coordinators where state = 'alive'") == [(0,)]
        await app.create_topic("missing", 1)
        await app.publish("missing", 1)
        assert len(await consumer.poll(1, 5)) == 1
        await consumer.close()
        assert not {task.get_name() for task in asyncio.all_tasks()} & {"coordinator-work", "coordinator-control"}
    wait_until(lambda: backend_count(dsn, "coordinator") == 0)
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.direct("counts the sessions of a client on the server")
@in_loop
async def test_maintain__once_and_until_cancelled__leaves_nothing(dsn):
    async with coordinator(dsn) as app:
        await app.create_topic(TOPIC, 1)
        assert (await app.maintain(once=True)).moved == 0
        await until(lambda: backend_count(dsn, "coordinator maintain") == 0)
        maintaining = asyncio.create_task(app.maintain(install_signal_handlers=False))
        await until(lambda: backend_count(dsn, "coordinator maintain") == 1)
        app.stop()
        await asyncio.wait_for(maintaining, 5)
        maintaining = asyncio.create_task(app.maintain(install_signal_handlers=False))
        await until(lambda: backend_count(dsn, "coordinator maintain") == 1)
        maintaining.cancel()
        await until(lambda: backend_count(dsn, "coordinator maintain") == 0)


async def _taken(consumer, count):
    found = []
    while len(found) < count:
        found += await consumer.poll(count, 20)
    return {message.value: message for message in found}


@in_loop
async def test_late_answers__of_the_first_run__a_nack_is_ignored_and_an_ack_counts(dsn):
    """Case 25 on asyncio: taken back, delivered again; then the first run's nack, reject and extend come, then its ack."""
    async with coordinator(dsn, visibility_timeout_s=0.5) as app:
        await app.create_topic(TOPIC, 2)
        await publish(app, 3)
        async with app.consumer(TOPIC, group=GROUP, ordering="none", retry=[0.1], max_attempts=100) as consumer:
            firsts = await _taken(consumer, 3)
            seconds = await _taken(consumer, 3)
            assert {message.attempt for message in seconds.values()} == {2}
            for message in seconds.values():
                message.extend(60)
            firsts[0].nack(delay_s=0)
            firsts[1].reject("late")
            assert not firsts[2].extend(60)
            assert all(message.delivery.live for message in seconds.values())
            for message in (*firsts.values(), *seconds.values()):
                message.ack()
            await consumer.commit()
            assert await consumer.poll(1, 0.3) == []
        assert query(dsn, "select 1 from coordinator.dead_letters union all select 1 from coordinator.retries") == []


@in_loop
async def test_late_answers__within_a_millisecond_of_the_deadline__end_in_one_outcome(dsn):
    """Case 25 on asyncio, on both sides of the deadline."""
    async with coordinator(dsn, visibility_timeout_s=0.3) as app:
        await app.create_topic(TOPIC, 1)
        async with app.consumer(TOPIC, group=GROUP, retry=[0.0], max_attempts=100) as consumer:
            for value in range(8):
                await publish(app, 1, start=value)
                (message,) = (await _taken(consumer, 1)).values()
                await asyncio.sleep(message.delivery.deadline_s - time.monotonic() + (value - 4) * 0.0005)
                (message.nack if value % 2 else message.ack)()
                for again in await consumer.poll(1, 0.3 if value % 2 == 0 else 20):
                    again.ack()
            await consumer.commit()
            assert await drain(consumer, 1, 0.3) == []
        assert sum(offset.lag for offset in await app.group_offsets(GROUP)) == 0
        assert query(dsn, "select 1 from coordinator.dead_letters union all select 1 from coordinator.retries") == []
