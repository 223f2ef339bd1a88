"""What a consumer takes (threads, connections, sockets, rows, CPU), and that it gives it back."""

import gc
import signal
import threading
import time
from pathlib import Path

import pytest
from support.processes import Process, Task
from support.proxy import backend_count
from support.shell import GROUP, TOPIC, committed, drain, owners, publish, query, short, threads, wait_until

from coordinator import Coordinator
from coordinator.errors import NotFoundError

OURS = {"coordinator-work", "coordinator-control"}


@pytest.fixture
def app(dsn):
    with Coordinator(dsn, client_id="test", settings=short()) as made:
        made.create_topic(TOPIC, 8)
        yield made


def open_files():
    # What another test has left and nobody refers to must not go while files are compared.
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.direct("counts the sessions of a client on the server")
def test_close__gives_back_threads_connections_and_sockets(app, dsn):
    publish(app, 20)
    before = open_files()
    with app.consumer(TOPIC, group=GROUP) as consumer:
        drain(consumer, 20)
        assert threads() >= OURS
        assert backend_count(dsn, "coordinator work") == backend_count(dsn, "coordinator control") == 1
    assert not threads() & OURS
    wait_until(lambda: backend_count(dsn, "coordinator work") + backend_count(dsn, "coordinator control") == 0)
    assert open_files() == before


def test_close__fifty_consumers_one_after_the_other__leave_nothing(app, dsn):
    """At all moments of a start: right away, while it claims, when it has claimed."""
    app.topics()
    before = open_files()
    for place in range(50):
        consumer = app.consumer(TOPIC, group=GROUP).start()
        time.sleep(place % 10 * 0.002)
        started_s = time.monotonic()
        consumer.close()
        assert time.monotonic() - started_s < 2
    assert not threads() & OURS
    assert open_files() == before


def test_close__fifty_consumers_at_once__leave_nothing(app, dsn):
    app.topics()
    before = open_files()
    consumers = [app.consumer(TOPIC, group=GROUP).start() for _ in range(50)]
    starting = [threading.Thread(target=consumer.close) for consumer in consumers]
    for thread in starting:
        thread.start()
    for thread in starting:
        thread.join(30)
    assert not threads() & OURS
    wait_until(lambda: open_files() == before)
    wait_until(lambda: query(dsn, "select count(*) from coordinator.members") == [(0,)])


def test_close__while_claiming__leaves_no_claim_owned(app, dsn, monkeypatch):
    """Control looks at the membership, close() finds nothing to release, control claims, and the coordinator leaves."""
    consumer = app.consumer(TOPIC, group=GROUP)
    runtime = consumer._runtime
    claiming, closing = threading.Event(), threading.Event()
    run = runtime._run

    def slow(connection, statement):
        if statement.name == "claim":
            claiming.set()
            closing.wait(5)
        return run(connection, statement)

    monkeypatch.setattr(runtime, "_run", slow)
    consumer.start()
    assert claiming.wait(5)
    closer = threading.Thread(target=consumer.close)
    closer.start()
    wait_until(runtime._stopping.is_set)
    closing.set()
    closer.join(20)
    assert query(dsn, "select count(*) from coordinator.claims where owner is not null") == [(0,)]


@pytest.mark.direct("counts the sessions of a client on the server")
def test_start__unknown_topic__raises_and_leaves_nothing_behind(app, dsn):
    consumer = app.consumer("missing", group=GROUP)
    with pytest.raises(NotFoundError):
        consumer.start()
    consumer.close()
    gc.collect()
    assert not threads() & OURS
    assert query(dsn, "select count(*) from coordinator.coordinators") == [(0,)]
    assert query(dsn, "select count(*) from coordinator.members") == [(0,)]
    wait_until(lambda: backend_count(dsn, "coordinator control") == 0)


def test_start__topic_made_after_a_failed_start__starts(app):
    consumer = app.consumer("missing", group=GROUP)
    with pytest.raises(NotFoundError):
        consumer.start()
    app.create_topic("missing", 1)
    app.publish("missing", 1)
    try:
        assert len(consumer.poll(1, 5)) == 1
    finally:
        consumer.close()


def test_run__second_topic_unknown__leaves_no_member_of_the_first_group(app, dsn):
    app.subscribe(TOPIC, group=GROUP)(lambda _message: None)
    app.subscribe("missing", group="other")(lambda _message: None)
    with pytest.raises(NotFoundError):
        app.run(install_signal_handlers=False)
    gc.collect()
    assert query(dsn, "select count(*) from coordinator.members") == [(0,)]


def test_consumer__made_and_never_started__leaves_no_socket(app):
    before = open_files()
    app.consumer(TOPIC, group=GROUP).close()
    gc.collect()
    assert open_files() == before


def test_idle__three_seconds__costs_next_to_nothing(app):
    publish(app, 20)
    with app.consumer(TOPIC, group=GROUP) as consumer:
        drain(consumer, 20)
        assert consumer.at_end(5)
        engine = consumer._runtime.engine
        # Polling slows down from 10 ms to a second.
        time.sleep(1.5)
        exchanges, cpu_s = engine.exchange_count, time.process_time()
        assert consumer.poll(1, 3) == []
        exchanges, cpu_s = engine.exchange_count - exchanges, time.process_time() - cpu_s
    print(f"idle for 3 s: {exchanges} exchanges, {cpu_s * 1000:.0f} ms CPU")
    assert exchanges <= 5
    # The heartbeats and looks of these settings are ten times as frequent as the defaults'.
    assert cpu_s < 0.3


def test_idle__message_in_hand_and_more_ready__does_not_spin(app):
    publish(app, 50, partition=0)
    with app.consumer(TOPIC, group=GROUP) as consumer:
        consumer.poll(1, 5)
        time.sleep(1.5)
        engine = consumer._runtime.engine
        exchanges, cpu_s = engine.exchange_count, time.process_time()
        time.sleep(2)
        assert engine.exchange_count - exchanges <= 4
        assert time.process_time() - cpu_s < 0.2


def test_idle__publisher_stays_open__passes_over_the_gap_back_off(app, dsn):
    import psycopg

    with psycopg.connect(dsn) as connection, app.consumer(TOPIC, group=GROUP) as consumer:
        app.publish(TOPIC, 1, partition=0, connection=connection)
        assert consumer.poll(1, 1) == []
        engine = consumer._runtime.engine
        exchanges, cpu_s = engine.exchange_count, time.process_time()
        assert consumer.poll(1, 2) == []
        print(f"gap open for 2 s: {engine.exchange_count - exchanges} exchanges")
        assert engine.exchange_count - exchanges <= 2 / 0.03 + 5
        assert time.process_time() - cpu_s < 0.5


def test_latency__publish_on_an_idle_system__handler_starts_soon(app):
    """From the return of publish, which is after its COMMIT, to the start of the handler, in one process."""
    started_s = {}
    consumer = app.consumer(TOPIC, group=GROUP).start()

    def read():
        for message in consumer:
            started_s[message.value] = time.monotonic()
            message.ack()

    reader = threading.Thread(target=read)
    reader.start()
    app.publish(TOPIC, -1)
    wait_until(lambda: -1 in started_s)
    waits_ms = []
    for number in range(100):
        # Irregular, and long enough for the polling to have slowed down.
        time.sleep(0.02 + number % 7 * 0.005)
        app.publish(TOPIC, number)
        at_s = time.monotonic()
        wait_until(lambda number=number: number in started_s)
        waits_ms.append((started_s[number] - at_s) * 1000)
    consumer.close()
    reader.join(10)
    waits_ms.sort()
    print(f"publish to handler: p50 {waits_ms[50]:.1f} ms, p99 {waits_ms[98]:.1f} ms")
    assert waits_ms[50] < 50
    assert waits_ms[98] < 500


def test_iterator__ctrl_c__leaves_the_group_and_ends(app, dsn, tmp_path):
    publish(app, 5, partition=0)
    with Process(Task(dsn, TOPIC, GROUP, work_s=0.01), tmp_path) as process:
        wait_until(lambda: len(process.events("committed")) == 5)
        process.signal(signal.SIGINT)
        assert process.wait(5) == 0
        assert [event["event"] for event in process.events()][-1] == "ended"
    assert set(owners(dsn).values()) == {None}
    assert committed(dsn)[0] == 5


@pytest.fixture(params=["threads", "asyncio"])
def child(request):
    """The shell of a process that gets signals."""
    return request.param


def test_run__sigterm__finishes_the_handler_acks_and_ends_with_zero(app, dsn, tmp_path, child):
    publish(app, 50, partition=0)
    with Process(Task(dsn, TOPIC, GROUP, mode="subscribe", shell=child, work_s=0.2), tmp_path) as process:
        wait_until(lambda: len(process.events("start")) >= 3)
        process.signal(signal.SIGTERM)
        assert process.wait(20) == 0
        starts, acks = process.places("start"), process.places("ack")
    assert starts == acks
    assert committed(dsn)[0] == len(acks)
    assert set(owners(dsn).values()) == {None}


def test_run__sigterm_and_the_handler_never_returns__gives_back_and_ends_with_one(app, dsn, tmp_path, child):
    publish(app, 5, partition=0)
    settings = {"drain_timeout_s": 0.5}
    task = Task(dsn, TOPIC, GROUP, mode="subscribe", shell=child, freeze_after=2, settings=settings)
    with Process(task, tmp_path) as process:
        wait_until(lambda: process.events("frozen"))
        process.signal(signal.SIGTERM)
        assert process.wait(20) == 1
    assert committed(dsn)[0] == 2
    assert set(owners(dsn).values()) == {None}
    with app.consumer(TOPIC, group=GROUP) as consumer:
        assert [(m.offset, m.attempt) for m in drain(consumer, 3)] == [(2, 1), (3, 1), (4, 1)]


@pytest.mark.parametrize("wait_s", [0.15, 0.35, 0.5])
def test_run__sigterm_while_it_starts__ends_and_keeps_nothing_from_others(app, dsn, tmp_path, child, wait_s):
    """Case 27. Before Python has come to install a handler, the signal ends it by default: also an end."""
    publish(app, 20)
    settings = {"lease_s": 1.5, "heartbeat_s": 0.3, "self_fence_margin_s": 0.3}
    with Process(Task(dsn, TOPIC, GROUP, mode="subscribe", shell=child, settings=settings), tmp_path) as process:
        if wait_s < 0.5:
            time.sleep(wait_s)
        else:
            wait_until(lambda: process.events("ready"))
        process.signal(signal.SIGTERM)
        assert process.wait(20) in (0, -signal.SIGTERM)
    # Whatever it had come to: the next has everything that is left, after a lease at the latest.
    left = 20 - sum(committed(dsn).values()) if query(dsn, "select 1 from coordinator.groups") else 20
    with app.consumer(TOPIC, group=GROUP) as consumer:
        assert len(drain(consumer, left, 30)) == left


def test_run__sigterm_twice__gives_back_at_once_uncharged(app, dsn, tmp_path, child):
    """Case 27: the first asks it to finish, the second does not want to wait."""
    publish(app, 20, partition=0)
    with Process(Task(dsn, TOPIC, GROUP, mode="subscribe", shell=child, work_s=4), tmp_path) as process:
        wait_until(lambda: process.events("start"))
        process.signal(signal.SIGTERM)
        time.sleep(0.1)
        process.signal(signal.SIGTERM)
        assert process.wait(20) == 1
        assert process.places("ack") == []
    with app.consumer(TOPIC, group=GROUP) as consumer:
        assert [(m.offset, m.attempt) for m in consumer.poll(1, 20)] == [(0, 1)]
