"""The server itself goes away and comes back, under load."""

import time

import pytest
from support.shell import Publishing, Reading, committed, query, short, threads, wait_until

from coordinator import Coordinator
from coordinator.db.schema import install
from coordinator.embedded import EmbeddedServer
from coordinator.errors import UnavailableError


@pytest.fixture(scope="module")
def own_server():
    """A private one, which these tests may harm."""
    with EmbeddedServer.start(tcp=True) as server:
        install(server.dsn)
        yield server


@pytest.fixture
def app(own_server):
    with Coordinator(own_server.dsn, client_id="test", settings=short()) as made:
        yield made


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_server__restarted_again_and_again_under_load__nothing_lost_and_the_loops_live(own_server, app, mode):
    """Case 13: everything published for sure is handled; what was confirmed is never handled again; wake-ups are back."""
    topic, group = f"orders-{mode}", f"ledger-{mode}"
    app.create_topic(topic, 4)
    consumers = [app.consumer(topic, group=group).start() for _ in range(2)]
    readings = [Reading(consumer, wait=True) for consumer in consumers]
    publishing = Publishing(app, topic)
    for _ in range(5 if mode == "immediate" else 2):
        time.sleep(0.6)
        own_server.restart(mode)
        done = len(publishing.sure)
        wait_until(lambda done=done: len(publishing.sure) > done + 20, 15, "publishing goes on")
    publishing.stop()
    seen = lambda: {value for reading in readings for value in reading.values}  # noqa: E731
    wait_until(lambda: seen() >= set(publishing.sure), 20, "everything handled")
    # Both loops of both, after all that: alive, and woken by a notification.
    assert all(consumer._runtime.failure is None for consumer in consumers)
    wait_until(lambda: all(consumer._runtime.engine.idle for consumer in consumers), 10)
    time.sleep(1.5)
    before_s = time.monotonic()
    app.publish(topic, -1)
    wait_until(lambda: -1 in seen(), 5)
    assert time.monotonic() - before_s < 0.5
    for reading in readings:
        reading.stop()
    assert seen() - {-1} <= {*publishing.sure, *publishing.unsure}
    repeated = {}
    for reading in readings:
        confirmed = set(reading.confirmed)
        places = [(partition, offset, epoch) for partition, offset, epoch, _ in reading.deliveries]
        assert len(places) == len(set(places)) or {attempt for *_, attempt in reading.deliveries} != {1}
        for partition, offset, _ in places:
            repeated.setdefault((partition, offset), []).append((partition, offset) in confirmed)
    # A message that came twice had no confirmed ack at its first coming: so at most one of them is confirmed.
    assert all(sum(marks) <= 1 for marks in repeated.values() if len(marks) > 1)
    assert sum(committed(own_server.dsn, group).values()) >= len(publishing.sure)


def test_server__away_longer_than_the_lease__everybody_keeps_what_it_had(own_server, app):
    """R6: an outage is nobody's death; no epoch rises, no attempt is charged."""
    app.create_topic("outage", 4)
    consumers = [
        Coordinator(own_server.dsn, client_id=name, settings=short()).consumer("outage", group="o").start()
        for name in ("a", "b")
    ]
    readings = [Reading(consumer) for consumer in consumers]
    sql = 'select o.partition, o.client_id, o.epoch from coordinator.offsets o where o."group" = %s order by 1'
    wait_until(lambda: sorted({row[1] for row in query(own_server.dsn, sql, "o")} - {None}) == ["a", "b"])
    wait_until(lambda: all(row[1] for row in query(own_server.dsn, sql, "o")))
    before = query(own_server.dsn, sql, "o")
    own_server.shut_down("fast")
    time.sleep(3.0)
    own_server.restart()
    for number in range(20):
        app.publish("outage", number, key=str(number))
    wait_until(lambda: sum(len(reading.values) for reading in readings) == 20, 10)
    time.sleep(1)
    assert query(own_server.dsn, sql, "o") == before
    for reading in readings:
        reading.stop()
        assert reading.errors == []


def test_close__server_down__returns_in_bounded_time_and_leaves_no_thread(own_server):
    with Coordinator(own_server.dsn, client_id="setup", settings=short()) as setup:
        setup.create_topic("down", 1)
        setup.publish("down", 1)
    app = Coordinator(own_server.dsn, client_id="down", settings=short(commit_timeout_s=1.0))
    consumer = app.consumer("down", group="d").start()
    (message,) = consumer.poll(1, 5)
    own_server.shut_down("immediate")
    try:
        message.ack()
        started_s = time.monotonic()
        with pytest.raises(UnavailableError):
            consumer.close()
        assert time.monotonic() - started_s < 4
        wait_until(lambda: not threads() & {"coordinator-work", "coordinator-control"}, 5)
    finally:
        own_server.restart()
