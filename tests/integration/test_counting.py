"""What a process counts, on both shells: numbers that agree with what its handlers have seen."""

from __future__ import annotations

import pytest
from support.shell import GROUP, TOPIC, publish, terminate, wait_until

from coordinator import Reject, Retry
from coordinator.observe import metrics
from coordinator.observe.meter import METER, Histogram, Meter, error_class


@pytest.fixture
def counted():
    """Counters since the test began: a counter of a process never falls, and others have counted before."""
    before = METER.read()

    def counter(metric: metrics.Metric, *labels: str) -> float:
        return METER.read().counters.get((metric, labels), 0) - before.counters.get((metric, labels), 0)

    return counter


def observations(metric: metrics.Metric, *labels: str) -> int:
    found = METER.read().histograms.get((metric, labels))
    return sum(found.counts) if found else 0


def test_counters__acks_retries_and_dead_letters__are_those_of_the_handlers(shell, counted, pooler):
    place = (TOPIC, GROUP)
    calls_before = observations(metrics.HANDLER_DURATION, *place)

    def handle(message):
        if message.value == 3 and message.attempt == 1:
            raise Retry(0)
        if message.value == 5:
            raise Reject("never")

    shell.subscribe(handle)
    shell.start()
    publish(shell.app, 10)
    wait_until(lambda: counted(metrics.DELIVERIES, *place, "acked") == 9, 30, "nine acks")
    wait_until(lambda: counted(metrics.DEAD_LETTERS, *place, "rejected") == 1, 30, "one dead letter")
    assert counted(metrics.PUBLISHED, TOPIC) == 10
    assert counted(metrics.STARTED, *place) == 11
    assert counted(metrics.DELIVERIES, *place, "retried") == 1
    assert counted(metrics.DELIVERIES, *place, "dead_lettered") == 1
    assert counted(metrics.REDELIVERIES, *place, "failure") == 1
    assert counted(metrics.STALE, *place) == 0
    # A sample: quick calls that follow each other are not all measured.
    assert 1 <= observations(metrics.HANDLER_DURATION, *place) - calls_before <= 11
    gauges = METER.read().gauges
    assert gauges[metrics.PARTITIONS, place] == 2
    # Behind a pooler nobody listens.
    assert gauges.get((metrics.LISTENER, ()), 0) == (pooler is None)
    assert gauges[metrics.LEASE_LEFT, ()] > 0
    assert abs(gauges[metrics.CLOCK_SKEW, ()]) < 5
    shell.stop()
    # What has ended is still counted, and holds nothing any more.
    assert counted(metrics.DELIVERIES, *place, "acked") == 9
    assert (metrics.PARTITIONS, place) not in METER.read().gauges


def test_redeliveries__deadline_passed__are_told_from_failures(shell, counted):
    attempts = []

    def handle(message):
        attempts.append(message.attempt)
        if message.attempt == 1:
            message.delivery.extend_until_s = 0.0
            wait_until(lambda: len(attempts) > 1, 30)

    shell.subscribe(handle, concurrency=2, ordering="none")
    shell.start()
    publish(shell.app, 1)
    wait_until(lambda: counted(metrics.REDELIVERIES, TOPIC, GROUP, "deadline") == 1, 30, "a redelivery")
    assert counted(metrics.REDELIVERIES, TOPIC, GROUP, "failure") == 0


@pytest.mark.direct("ends the sessions of one client")
def test_database_errors__connection_lost__are_counted_and_the_listener_comes_back(shell, counted):
    seen = []
    shell.subscribe(lambda message: seen.append(message.value))
    shell.start()
    wait_until(lambda: METER.read().gauges.get((metrics.LISTENER, ())) == 1, 30, "a listener")
    terminate(shell.app.dsn, "coordinator ")
    wait_until(
        lambda: sum(counted(metrics.DATABASE_ERRORS, kind) for kind in ("operator", "connection")) >= 1, 30, "an error"
    )
    wait_until(lambda: METER.read().gauges.get((metrics.LISTENER, ())) == 1, 30, "the listener")
    publish(shell.app, 1)
    wait_until(lambda: seen, 30, "a message")


def test_latency__of_a_delayed_consumer__is_measured_by_the_servers_clock(shell):
    before = observations(metrics.DELIVERY_LATENCY, TOPIC, GROUP)
    seen = []
    shell.subscribe(seen.append)
    shell.start()
    wait_until(lambda: (metrics.CLOCK_SKEW, ()) in METER.read().gauges, 30, "the clock")
    publish(shell.app, 1)
    wait_until(lambda: seen, 30, "a message")
    assert observations(metrics.DELIVERY_LATENCY, TOPIC, GROUP) > before


@pytest.mark.parametrize(
    ("sqlstate", "kind"),
    [
        (None, "connection"),
        ("08006", "connection"),
        ("40P01", "transaction"),
        ("KG001", "protocol"),
        ("22003", "other"),
    ],
)
def test_error_class__is_one_of_the_closed_list(sqlstate, kind):
    assert error_class(sqlstate) == kind
    assert kind in metrics.ERROR_CLASSES


def test_histogram__value_at_a_bound__is_counted_at_or_below_it():
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.total == 14.0


def test_meter__source_ended__keeps_its_counters_and_drops_its_gauges():
    class Source:
        def read(self, into):
            into.count(metrics.LEASE_LOSSES, 2)
            into.gauge(metrics.IN_FLIGHT_BYTES, 7)

    meter, source = Meter(), Source()
    meter.enter(source)
    meter.leave(source)
    meter.leave(source)
    reading = meter.read()
    assert reading.counters[metrics.LEASE_LOSSES, ()] == 2
    assert (metrics.IN_FLIGHT_BYTES, ()) not in reading.gauges


def test_labels__are_topic_group_partition_and_closed_lists():
    for metric in metrics.METRICS:
        assert metric.name.startswith("coordinator_")
        assert metric.name.endswith("_total") is (metric.kind == "counter")
        open_labels = set(metric.labels) - set(metric.values)
        # Tables and tasks are those of the schema.
        assert open_labels <= {"topic", "group", "partition", "table", "task"}, metric.name
