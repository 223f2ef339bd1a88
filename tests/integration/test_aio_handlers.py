"""Handlers on asyncio: what becomes of what they return, raise, and leave undone."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

import psycopg
import pytest
from support.aio import Running, coordinator, in_loop, publish, until, until_read
from support.proxy import backend_count
from support.shell import GROUP, TOPIC, committed, query

from coordinator import Outgoing, Reject, Retry
from coordinator.errors import ConfigError

ROOT = Path(__file__).parents[2]


@in_loop
async def test_handler__raises__is_delivered_again_after_the_delay_and_then_a_dead_letter(dsn):
    async with coordinator(dsn) as app:
        await app.create_topic(TOPIC, 1)
        await publish(app, 3, partition=0)
        seen, letters = [], []

        async def hook(letter):
            letters.append((letter["offset"], letter["reason"], letter["attempts"]))

        @app.subscribe(TOPIC, group=GROUP, max_attempts=3, retry=[0.1, 0.1], on_dead_letter=hook)
        async def book(message):
            seen.append((message.offset, message.attempt))
            await asyncio.sleep(0)
            if message.offset == 0:
                raise ValueError("always")
            if message.offset == 1 and message.attempt == 1:
                raise Retry(0.05)
            if message.offset == 2:
                raise Reject("no such customer")

        async with Running(app):
            await until_read(app)
            await until(lambda: len(letters) == 2)
        assert sorted(seen) == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (2, 1)]
        assert sorted((offset, attempts) for offset, _, attempts in letters) == [(0, 3), (2, 1)]
        dead = query(dsn, 'select d."offset" from coordinator.dead_letters d order by 1')
        assert dead == [(0,), (2,)]


@in_loop
async def test_key_order__fifty_tasks_and_failures__each_key_in_order(dsn):
    async with coordinator(dsn) as app:
        await app.create_topic(TOPIC, 4)
        messages = [Outgoing([key, place], f"key-{key}") for place in range(20) for key in range(20)]
        await app.publish_many(TOPIC, messages)
        done, running = defaultdict(list), Counter()

        @app.subscribe(TOPIC, group=GROUP, concurrency=50, ordering="key", retry=[0.05])
        async def book(message):
            key, place = message.value
            running[key] += 1
            assert running[key] == 1
            await asyncio.sleep(0.001)
            running[key] -= 1
            if place == 5 and message.attempt == 1:
                raise ValueError("once")
            done[key].append(place)

        async with Running(app):
            await until_read(app, limit_s=30)
        assert all(done[key] == list(range(20)) for key in range(20))


@in_loop
async def test_partition_order__a_failing_message_is_not_overtaken(dsn):
    async with coordinator(dsn) as app:
        await app.create_topic(TOPIC, 2)
        for partition in range(2):
            await publish(app, 20, partition=partition)
        done = defaultdict(list)

        @app.subscribe(TOPIC, group=GROUP, concurrency=8, ordering="partition", retry=[0.05])
        async def book(message):
            await asyncio.sleep(0.001)
            if message.offset == 5 and message.attempt == 1:
                raise ValueError("once")
            done[message.partition].append(message.offset)

        async with Running(app):
            await until_read(app)
        assert done == {0: list(range(20)), 1: list(range(20))}


@in_loop
async def test_concurrency__fifty_tasks_run_at_the_same_time_and_no_more(dsn):
    async with coordinator(dsn) as app:
        await app.create_topic(TOPIC, 4)
        await publish(app, 200)
        now, most = 0, 0

        @app.subscribe(TOPIC, group=GROUP, concurrency=50, ordering="none")
        async def book(_message):
            nonlocal now, most
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.1)
            now -= 1

        async with Running(app):
            await until_read(app)
        assert most == 50


@in_loop
async def test_transactional__failures_and_another_member__exactly_one_effect(dsn):
    query(dsn, "create table effects (value bigint)")
    async with coordinator(dsn) as app, coordinator(dsn) as other:
        await app.create_topic(TOPIC, 4)
        await publish(app, 200)

        async def book(message, connection):
            assert isinstance(connection, psycopg.AsyncConnection)
            await connection.execute("insert into effects values (%s)", (message.value,))
            if message.value % 10 == 0 and message.attempt == 1:
                raise ValueError("after its effect")

        for face in (app, other):
            face.subscribe(TOPIC, group=GROUP, concurrency=8, transactional=True, retry=[0.05])(book)
        async with Running(app), Running(other):
            await until_read(app, limit_s=30)
        assert query(dsn, "select count(*), count(distinct value) from effects") == [(200, 200)]


@in_loop
async def test_transactional__rolled_back_by_its_handler__is_a_failure(dsn):
    query(dsn, "create table effects (value bigint)")
    async with coordinator(dsn) as app:
        await app.create_topic(TOPIC, 1)
        await publish(app, 1, partition=0)
        attempts = []

        @app.subscribe(TOPIC, group=GROUP, transactional=True, retry=[0.05])
        async def book(message, connection):
            attempts.append(message.attempt)
            await connection.execute("insert into effects values (%s)", (message.value,))
            if message.attempt == 1:
                raise psycopg.Rollback

        async with Running(app):
            await until_read(app)
        assert attempts == [1, 2]
        assert query(dsn, "select * from effects") == [(0,)]


@in_loop
async def test_transactional__function_that_is_no_coroutine__is_refused(dsn):
    async with coordinator(dsn) as app:
        with pytest.raises(ConfigError):
            app.subscribe(TOPIC, group=GROUP, transactional=True)(lambda _message, _connection: None)


@in_loop
async def test_batch__handler_gets_lists_and_says_of_each_message_what_became_of_it(dsn):
    async with coordinator(dsn) as app:
        await app.create_topic(TOPIC, 1)
        await publish(app, 20, partition=0)
        batches = []

        @app.subscribe(TOPIC, group=GROUP, batch_size=5, ordering="none", retry=[0.05])
        async def book(batch):
            batches.append([(message.value, message.attempt) for message in batch])
            await asyncio.sleep(0)
            return {
                message: ValueError("odd one") if message.value == 7 and message.attempt == 1 else None
                for message in batch
            }

        async with Running(app):
            await until_read(app)
        seen = [place for batch in batches for place in batch]
        assert sorted(seen) == sorted([(value, 1) for value in range(20)] + [(7, 2)])
        assert max(map(len, batches)) == 5
        assert [(7, 2)] in batches


@in_loop
async def test_sync_handler__runs_in_a_thread_and_settles_from_there(dsn):
    async with coordinator(dsn) as app:
        await app.create_topic(TOPIC, 1)
        await publish(app, 60, partition=0)
        threads, most, now = set(), 0, 0
        guard = threading.Lock()

        @app.subscribe(TOPIC, group=GROUP, concurrency=40, ordering="none", retry=[0.05])
        def book(message):
            nonlocal most, now
            threads.add(threading.get_ident())
            with guard:
                now += 1
                most = max(most, now)
            time.sleep(0.05)
            with guard:
                now -= 1
            if message.value == 0 and message.attempt == 1:
                raise ValueError("once")
            assert message.extend(20)
            if message.value % 3 == 0:
                message.ack(wait=True)
            elif message.value % 3 == 1:
                message.ack()

        async with Running(app):
            await until_read(app)
        assert threading.get_ident() not in threads
        assert most == 40


@in_loop
async def test_handler__what_it_waits_for_is_cancelled__has_failed(dsn, caplog):
    async with coordinator(dsn) as app:
        await app.create_topic(TOPIC, 1)
        await publish(app, 1, partition=0)
        attempts = []

        @app.subscribe(TOPIC, group=GROUP, retry=[0.05])
        async def book(message):
            attempts.append(message.attempt)
            if len(attempts) < 3:
                waiting = asyncio.create_task(asyncio.sleep(10))
                waiting.cancel()
                await waiting

        async with Running(app):
            await until_read(app)
        assert attempts == [1, 2, 3]
        assert [record.msg for record in caplog.records].count("handler.failed") == 2


@pytest.mark.parametrize("when", ["waiting", "at its end"])
@pytest.mark.parametrize("concurrency", [1, 2])
@in_loop
async def test_handler__cancels_its_own_task__ends_no_worker(dsn, when, concurrency):
    """A limit of its own (`loop.call_later(2, task.cancel)`), which may come when it has just returned."""
    async with coordinator(dsn) as app:
        await app.create_topic(TOPIC, 1)
        await publish(app, 30, partition=0)
        seen = Counter()

        @app.subscribe(TOPIC, group=GROUP, retry=[0.05], max_attempts=2, ordering="none", concurrency=concurrency)
        async def book(message):
            await asyncio.sleep(0)
            seen[message.value, message.attempt] += 1
            if message.value % 10 == 5:
                asyncio.current_task().cancel()
                if when == "waiting":
                    await asyncio.sleep(30)

        async with Running(app):
            await until_read(app)
        again = {value for value, attempt in seen if attempt == 2}
        assert again == ({5, 15, 25} if when == "waiting" else set())
        assert seen.keys() >= {(value, 1) for value in range(30)}
        assert set(seen.values()) == {1}
        dead = query(dsn, 'select d."offset" from coordinator.dead_letters d order by 1')
        assert dead == ([(5,), (15,), (25,)] if when == "waiting" else [])


@in_loop
async def test_run__cancelled_together_with_its_handlers__gives_back_uncharged(dsn):
    async with coordinator(dsn) as app:
        await app.create_topic(TOPIC, 1)
        await publish(app, 5, partition=0)
        seen = []

        @app.subscribe(TOPIC, group=GROUP, ordering="none", concurrency=2)
        async def book(message):
            seen.append(message.value)
            await asyncio.sleep(30)

        running = asyncio.create_task(app.run(install_signal_handlers=False))
        await until(lambda: len(seen) == 2)
        for task in asyncio.all_tasks():
            if task is running or task.get_name().startswith("coordinator-handler"):
                task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert query(dsn, "select count(*) from coordinator.retries") == [(0,)]
    async with coordinator(dsn) as app, app.consumer(TOPIC, group=GROUP, ordering="none") as consumer:
        rest = []
        while len(rest) < 5:
            rest += await consumer.poll(5, 15)
        assert {message.attempt for message in rest} == {1}


@in_loop
async def test_stop__handler_takes_longer_than_the_drain__is_cancelled_and_given_back_uncharged(dsn):
    async with coordinator(dsn, drain_timeout_s=0.5) as app:
        await app.create_topic(TOPIC, 1)
        await publish(app, 5, partition=0)
        started, cancelled, finished = [], [], []

        @app.subscribe(TOPIC, group=GROUP, concurrency=2, ordering="none")
        async def book(message):
            started.append(message.value)
            try:
                await asyncio.sleep(0.3 if message.value == 0 else 30)
            except asyncio.CancelledError:
                cancelled.append(message.value)
                raise
            finished.append(message.value)

        running = Running(app)
        await until(lambda: len(started) == 2)
        stopped_s = time.monotonic()
        app.stop()
        await asyncio.wait([running.task], timeout=10)
        assert time.monotonic() - stopped_s < 3
        assert running.code == 1
        assert (started, finished, cancelled) == ([0, 1], [0], [1])
        async with app.consumer(TOPIC, group=GROUP, ordering="none") as consumer:
            rest = []
            while len(rest) < 4:
                rest += await consumer.poll(4, 2)
            assert sorted((message.value, message.attempt) for message in rest) == [(value, 1) for value in range(1, 5)]


@pytest.mark.direct("counts the sessions of a client on the server")
@in_loop
async def test_run__cancelled__gives_back_writes_and_leaves(dsn):
    async with coordinator(dsn) as app:
        await app.create_topic(TOPIC, 1)
        await publish(app, 5, partition=0)
        seen = []

        @app.subscribe(TOPIC, group=GROUP, ordering="partition")
        async def book(message):
            seen.append(message.value)
            if message.value == 2:
                await asyncio.sleep(30)

        running = asyncio.create_task(app.run(install_signal_handlers=False))
        await until(lambda: len(seen) == 3)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert committed(dsn) == {0: 2}
        assert query(dsn, "select count(*) from coordinator.members") == [(0,)]
        assert query(dsn, "select count(*) from coordinator.claims where owner is not null") == [(0,)]
        assert backend_count(dsn, "coordinator work") + backend_count(dsn, "coordinator control") == 0


class Child:
    """A process of support/aio_child.py."""

    def __init__(self, dsn, folder, work_s, kind="await"):
        self._path = folder / f"child-{time.monotonic_ns()}"
        self._output = self._path.open("w")
        self.popen = subprocess.Popen(
            [sys.executable, str(ROOT / "tests/support/aio_child.py"), dsn, str(work_s), kind],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
        )

    def lines(self, word):
        return [line.split()[1] for line in self._path.read_text().splitlines() if line.startswith(word + " ")]

    def text(self):
        return self._path.read_text()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.popen.kill()
        self.popen.wait()
        self._output.close()


async def exit_code(child, limit_s):
    await until(lambda: child.popen.poll() is not None, limit_s, "exit")
    return child.popen.returncode


@in_loop
async def test_sigterm__running_handlers_finish__exit_zero_and_nothing_is_done_twice(dsn, tmp_path):
    async with coordinator(dsn) as app:
        await app.create_topic(TOPIC, 4)
        await publish(app, 40)
        with Child(dsn, tmp_path, 0.3) as child:
            await until(lambda: len(child.lines("start")) >= 6)
            child.popen.send_signal(signal.SIGTERM)
            assert await exit_code(child, 5) == 0, child.text()
            started, ended = child.lines("start"), child.lines("end")
        assert sorted(started) == sorted(ended)
        async with app.consumer(TOPIC, group=GROUP) as consumer:
            rest = []
            while len(rest) < 40 - len(ended):
                for message in await consumer.poll(40, 3):
                    rest.append(message)
                    message.ack()
            assert {str(message.value) for message in rest}.isdisjoint(ended)
            assert all(message.attempt == 1 for message in rest)


@pytest.mark.parametrize("kind", ["await", "thread", "stubborn"])
@in_loop
async def test_sigterm_twice__ends_at_once_with_one__what_ran_is_given_back_uncharged(dsn, tmp_path, kind):
    async with coordinator(dsn) as app:
        await app.create_topic(TOPIC, 4)
        await publish(app, 8)
        with Child(dsn, tmp_path, 60, kind) as child:
            await until(lambda: len(child.lines("start")) == 4)
            child.popen.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.3)
            assert child.popen.poll() is None
            signalled_s = time.monotonic()
            child.popen.send_signal(signal.SIGTERM)
            await until(lambda: query(dsn, "select count(*) from coordinator.members") == [(0,)], 8)
            if kind != "stubborn":
                assert await exit_code(child, 5) == 1, child.text()
                assert time.monotonic() - signalled_s < 4
        async with app.consumer(TOPIC, group=GROUP, ordering="none") as consumer:
            rest = []
            while len(rest) < 8:
                rest += await consumer.poll(8, 3)
            assert {message.attempt for message in rest} == {1}


@in_loop
async def test_stop__before_it_has_begun__ends_it(dsn):
    async with coordinator(dsn) as app:
        await app.create_topic(TOPIC, 1)

        @app.subscribe(TOPIC, group=GROUP)
        async def book(message): ...

        app.stop()
        assert await asyncio.wait_for(app.run(install_signal_handlers=False), 10) == 0
        app.stop()
        await asyncio.wait_for(app.maintain(install_signal_handlers=False), 10)


@in_loop
@pytest.mark.parametrize("handler", ["coroutine", "plain"])
async def test_handler__returns_work_that_nobody_does__has_failed(dsn, handler):
    def many(*_arguments):
        yield 1

    def hand_on(message):
        return many(message)

    async def book(message):
        return many(message)

    async with coordinator(dsn) as app:
        await app.create_topic(TOPIC, 1)
        await publish(app, 1, partition=0)
        app.subscribe(TOPIC, group=GROUP, max_attempts=1)(book if handler == "coroutine" else hand_on)
        async with Running(app):
            await until(lambda: query(dsn, "select count(*) from coordinator.dead_letters") == [(1,)])
