"""Several groups that each read everything, and several processes of one group, beside as many cursors over a bare table."""

import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator import Coordinator
from coordinator.cli.bench import crowd
from coordinator.cli.bench.bare import BATCH, Bare, connect
from coordinator.cli.bench.crowd import Lap, Work
from coordinator.cli.bench.meter import Meter
from coordinator.cli.bench.stats import Spread, losses
from coordinator.cli.bench.workload import Workload, chunks, number_of
from coordinator.db.schema import install, uninstall
from coordinator.errors import UnavailableError

SCHEMA = "coordinator_bench"

_BATCH_MESSAGES = 500
_LOOK_S = 0.2
_JOIN_LIMIT_S = 60.0
_SILENCE_LIMIT_S = 15.0


@dataclass(frozen=True, slots=True)
class Plan:
    """Every number of groups with every number of processes in each; bare has one process for each group."""

    dsn: str
    group_counts: Sequence[int]
    member_counts: Sequence[int]
    message_count: int
    payload_bytes: int
    partition_count: int
    repeat_count: int
    keep: bool


@dataclass(frozen=True, slots=True)
class Side:
    """What one side did, over the repeats.

    Attributes:
        rate: Deliveries of all groups a second; the time ends when the last ack is committed.
        cpu_us: Processor time for each published message, client and server: publishing, and reading by all groups. None where
            the server's processes are not to be seen.
        wal_bytes: For each published message, likewise.
    """

    rate: Spread
    cpu_us: Spread | None
    wal_bytes: Spread


@dataclass(frozen=True, slots=True)
class Point:
    """One combination; the ratios are medians of those of the same repeats. `bare` is None for more than one process a group."""

    groups: int
    members: int
    ours: Side
    bare: Side | None
    rate_ratio: Spread | None
    cpu_ratio: Spread | None
    wal_ratio: Spread | None
    lost: int
    duplicates: int


@dataclass(frozen=True, slots=True)
class _Sample:
    rate: float
    cpu_us: float | None
    wal_bytes: float


def run(plan: Plan, say: Callable[[str], None]) -> list[Point]:
    """Measure every combination; `say` is told what is going on.

    Raises:
        UnavailableError: The consumers did not come up, or one died.
    """
    with connect(plan.dsn) as connection:
        bare = Bare(connection, plan.partition_count)
        bare.create()
        uninstall(plan.dsn, SCHEMA)
        install(plan.dsn, SCHEMA)
        try:
            with Coordinator(plan.dsn, schema=SCHEMA, client_id="bench publisher") as app:
                return [
                    _measure(plan, app, bare, Meter(connection), groups, members, say)
                    for groups in plan.group_counts
                    for members in plan.member_counts
                ]
        finally:
            if not plan.keep:
                bare.drop()
                uninstall(plan.dsn, SCHEMA)


def _measure(
    plan: Plan, app: Coordinator, bare: Bare, meter: Meter, groups: int, members: int, say: Callable[[str], None]
) -> Point:
    mine: list[_Sample] = []
    others: list[_Sample] = []
    lost = duplicates = 0
    for repeat in range(plan.repeat_count):
        say(f"{groups} groups of {members} processes, repeat {repeat + 1} of {plan.repeat_count}")
        for side in ("ours", "bare") if repeat % 2 == 0 else ("bare", "ours"):
            if side == "ours":
                topic = f"fanout-{groups}-{members}-{repeat}"
                sample, seen = _ours(plan, app, meter, topic, groups, members)
                mine.append(sample)
                for numbers in seen:
                    some_lost, some_duplicates = losses(plan.message_count, numbers)
                    lost += some_lost
                    duplicates += some_duplicates
            elif members == 1:
                others.append(_bare(plan, bare, meter, groups))
    return Point(
        groups,
        members,
        _side(mine),
        _side(others) if others else None,
        _ratio(mine, others, lambda sample: sample.rate),
        _ratio(mine, others, lambda sample: sample.cpu_us),
        _ratio(mine, others, lambda sample: sample.wal_bytes),
        lost,
        duplicates,
    )


def _ours(
    plan: Plan, app: Coordinator, meter: Meter, topic: str, groups: int, members: int
) -> tuple[_Sample, Sequence[Sequence[int]]]:
    app.create_topic(topic, partitions=plan.partition_count)
    batches = list(chunks(Workload(plan.message_count, plan.payload_bytes).outgoing(), BATCH))

    def publish() -> None:
        for batch in batches:
            app.publish_many(topic, batch)

    published = _publishing(publish, meter)
    counters = [multiprocessing.get_context("spawn").Value("q", 0) for _ in range(groups)]
    share = (plan.partition_count // members, -(-plan.partition_count // members))
    work = crowd.run(
        [
            (consume, (plan.dsn, topic, f"{topic}-{group}", share, plan.message_count, counters[group]))
            for group in range(groups)
            for _ in range(members)
        ],
        meter,
    )
    for group in range(groups):
        app.delete_group(f"{topic}-{group}", force=True)
    app.delete_topic(topic, force=True)
    # By groups: the members' parts together.
    seen = [
        [number for numbers in work.results[group * members : (group + 1) * members] for number in numbers]
        for group in range(groups)
    ]
    return _sample(plan, groups, published, work), seen


def _bare(plan: Plan, bare: Bare, meter: Meter, groups: int) -> _Sample:
    bare.empty()
    workload = Workload(plan.message_count, plan.payload_bytes)
    published = _publishing(lambda: bare.publish(workload, BATCH), meter)
    names = [f"bench-{group}" for group in range(groups)]
    for name in names:
        bare.add_cursor(name)
    work = crowd.run([(consume_bare, (plan.dsn, name, plan.partition_count)) for name in names], meter)
    # A yardstick that reads less would be none.
    assert all(count == plan.message_count for count in work.results)
    return _sample(plan, groups, published, work)


def consume(lap: Lap, dsn: str, topic: str, group: str, share: tuple[int, int], count: int, counter: Any) -> list[int]:
    """Be one member of a group: read until the group has everything, and return the numbers that this one got."""
    payloads: list[bytes] = []
    with (
        Coordinator(dsn, schema=SCHEMA, client_id="bench") as app,
        app.consumer(topic, group=group) as consumer,
    ):
        consumer.pause()
        _wait_for_share(consumer, share)
        lap.start()
        consumer.resume()
        quiet_since_s = time.monotonic()
        for messages in consumer.batches(_BATCH_MESSAGES, timeout_s=_LOOK_S):
            for message in messages:
                payloads.append(message.payload)
                message.ack()
            if messages:
                with counter.get_lock():
                    counter.value += len(messages)
                quiet_since_s = time.monotonic()
            # What is missing is lost, and is told as such.
            if counter.value >= count or time.monotonic() - quiet_since_s > _SILENCE_LIMIT_S:
                break
        consumer.commit()
        lap.stop()
    return [number_of(payload) for payload in payloads]


def consume_bare(lap: Lap, dsn: str, name: str, partition_count: int) -> int:
    """Read the bare table behind a cursor of its own; returns how many rows that were."""
    with connect(dsn) as connection:
        bare = Bare(connection, partition_count)
        lap.start()
        _, seen = bare.consume(name)
        lap.stop()
        return len(seen)


def _wait_for_share(consumer: Any, share: tuple[int, int]) -> None:
    deadline_s = time.monotonic() + _JOIN_LIMIT_S
    while consumer.status().partitions not in share:
        if time.monotonic() > deadline_s:
            raise UnavailableError(
                f"a consumer has {consumer.status().partitions} partitions after {_JOIN_LIMIT_S:g} s, wanted {share}"
            )
        time.sleep(_LOOK_S)


def _publishing(publish: Callable[[], object], meter: Meter) -> Work:
    meter.settle()
    before, cpu_s, started_s = meter.read(), time.process_time(), time.perf_counter()
    publish()
    elapsed_s, client_cpu_s = time.perf_counter() - started_s, time.process_time() - cpu_s
    after = meter.read()
    seen = before.cpu_s is not None and after.cpu_s is not None
    server_cpu_s = (after.cpu_s or 0.0) - (before.cpu_s or 0.0) if seen else None
    return Work(elapsed_s, client_cpu_s, server_cpu_s, after.wal_bytes - before.wal_bytes, ())


def _sample(plan: Plan, groups: int, published: Work, consumed: Work) -> _Sample:
    cpu_us = None
    if published.server_cpu_s is not None and consumed.server_cpu_s is not None:
        cpu_s = published.client_cpu_s + published.server_cpu_s + consumed.client_cpu_s + consumed.server_cpu_s
        cpu_us = 1e6 * cpu_s / plan.message_count
    return _Sample(
        groups * plan.message_count / consumed.elapsed_s,
        cpu_us,
        (published.wal_bytes + consumed.wal_bytes) / plan.message_count,
    )


def _side(samples: Sequence[_Sample]) -> Side:
    cpu_us = [sample.cpu_us for sample in samples if sample.cpu_us is not None]
    return Side(
        Spread.of([sample.rate for sample in samples]),
        Spread.of(cpu_us) if cpu_us else None,
        Spread.of([sample.wal_bytes for sample in samples]),
    )


def _ratio(mine: Sequence[_Sample], others: Sequence[_Sample], of: Callable[[_Sample], float | None]) -> Spread | None:
    if not others:
        return None
    pairs = [(of(one), of(other)) for one, other in zip(mine, others, strict=True)]
    ratios = [one / other for one, other in pairs if one is not None and other]
    return Spread.of(ratios) if ratios else None
