"""A guard against getting slow: what a message costs here, in relation to what it costs a bare table in the same minute.

Costs are seconds of processor time, of this process and of the server together. Rates would be nearer to what users feel, but on a
machine that others use as well their ratio moves by a factor of three, and a guard that is wide enough for that lets half the
speed pass. A wait that uses no processor is not seen here: test_publish_measures and `coordinator bench` look at those.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import psycopg
import pytest

from coordinator import Coordinator
from coordinator.cli.bench.bare import BATCH, Bare
from coordinator.cli.bench.meter import Meter
from coordinator.cli.bench.ours import Ours
from coordinator.cli.bench.workload import Workload

pytestmark = [
    pytest.mark.direct("the pooler's own work is not the product's"),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the server's processor time is read from /proc"),
]

COUNT = 40_000
PARTITIONS = 8
ROUNDS = 5
LOOKS = 4
# Twice what is spent must fail, and half as much again must not; what is measured is written in docs/performance.md.
MOST_PUBLISH, MOST_CONSUME = 2.2, 5.2


class Processor:
    """The processor time of this process and of all of the server's."""

    def __init__(self, connection):
        self._meter = Meter(connection)

    def used_s(self):
        server_s = self._meter.read().cpu_s
        if server_s is None:
            pytest.skip("the server's processes are not to be seen from here")
        return time.process_time() + server_s

    def of(self, work):
        """The seconds that a piece of work uses."""
        before_s = self.used_s()
        work()
        return self.used_s() - before_s

    def twice(self, work):
        """A mutant: the work at half its speed, by burning as much again as it has used."""
        used_s = self.of(work)
        until_s = time.process_time() + used_s
        while time.process_time() < until_s:
            pass


def costs(dsn, name, *, slow):
    """Medians of the ratios of ours to bare, (publish, consume), over rounds in which they follow each other."""
    workload = Workload(COUNT, 200)
    publish, consume = [], []
    with psycopg.connect(dsn, autocommit=True) as connection, Coordinator(dsn) as app:
        processor = Processor(connection)
        bare, ours = Bare(connection, PARTITIONS), Ours(app, PARTITIONS)

        def spent_s(work):
            return processor.of((lambda: processor.twice(work)) if slow else work)

        for number in range(ROUNDS):
            topic = f"{name}_{number}"
            ours.create_topic(topic)
            bare.create()
            bare_s = processor.of(lambda: bare.publish(workload, BATCH))
            publish.append(spent_s(lambda: ours.publish_batched(topic, workload, BATCH)) / bare_s)  # noqa: B023
            bare_s = processor.of(bare.consume)
            consume.append(spent_s(lambda: ours.consume_batches(topic, "g", COUNT)) / bare_s)  # noqa: B023
        bare.drop()
    print(f"ours / bare: publish {publish}, consume {consume}")
    return statistics.median(publish), statistics.median(consume)


def test_speed__publish_and_consume_in_batches__cost_no_more_than_they_may(dsn):
    # Somebody else's load may spoil one look, or two; what has become slow is slow in all of them.
    looks = []
    for _ in range(LOOKS):
        publish, consume = costs(dsn, f"t{len(looks)}", slow=False)
        looks.append((publish, consume))
        if publish <= MOST_PUBLISH and consume <= MOST_CONSUME:
            return
    pytest.fail(f"publish and consume cost {looks} of bare, at most {MOST_PUBLISH} and {MOST_CONSUME} are allowed")


def test_speed__at_half_the_speed__both_are_found_out(dsn):
    publish, consume = costs(dsn, "t", slow=True)
    assert publish > MOST_PUBLISH
    assert consume > MOST_CONSUME
