"""The load test of a broker's tutorials: many consumers of one group, several windows, small and large amounts of messages."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from coordinator import Coordinator
from coordinator.cli.bench.fleet import GROUP, Fleet
from coordinator.cli.bench.stats import losses, percentile
from coordinator.cli.bench.workload import Workload, chunks
from coordinator.db.schema import install, uninstall
from coordinator.errors import NotFoundError, UnavailableError

SCHEMA = "coordinator_bench"

_PUBLISH_BATCH = 1000
_POLL_S = 0.05
_JOIN_LIMIT_S = 120.0
# Nothing comes for so long: what is missing is lost.
_SILENCE_LIMIT_S = 15.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured: every consumer count with every window and every number of messages; None is the automatic window."""

    dsn: str
    consumer_counts: Sequence[int]
    prefetches: Sequence[int | None]
    message_counts: Sequence[int]
    payload_bytes: int
    partition_count: int
    keep: bool


@dataclass(frozen=True, slots=True)
class Point:
    """One run.

    Attributes:
        rate: Messages a second, from the first call of publish to the last message in hand.
        average_ms, p50_ms, p99_ms: From before a message's call of publish to the message in hand; where messages come quicker
            than they are consumed that is mostly the wait in the log.
    """

    consumers: int
    prefetch: int | None
    messages: int
    rate: float
    average_ms: float
    p50_ms: float
    p99_ms: float
    lost: int
    duplicates: int


def run(plan: Plan, say: Callable[[str], None]) -> list[Point]:
    """Measure every combination, each with a topic, a group and consumers of its own; `say` is told what is going on.

    Raises:
        UnavailableError: The consumers did not come up.
    """
    uninstall(plan.dsn, SCHEMA)
    install(plan.dsn, SCHEMA)
    try:
        points = []
        with Coordinator(plan.dsn, schema=SCHEMA, client_id="bench publisher") as app:
            for messages in plan.message_counts:
                for consumers in plan.consumer_counts:
                    for prefetch in plan.prefetches:
                        window = "automatic" if prefetch is None else prefetch
                        say(f"{messages:,} messages, {consumers} consumers, prefetch {window}")
                        points.append(_measure(plan, app, consumers, prefetch, messages))
        return points
    finally:
        if not plan.keep:
            uninstall(plan.dsn, SCHEMA)


def _measure(plan: Plan, app: Coordinator, consumers: int, prefetch: int | None, messages: int) -> Point:
    topic = f"scaling-{consumers}-{prefetch or 'auto'}-{messages}"
    # A consumer without a partition would have nothing to do.
    app.create_topic(topic, partitions=max(consumers, plan.partition_count))
    workload = Workload(messages, plan.payload_bytes)
    with Fleet(plan.dsn, SCHEMA, topic, consumers, prefetch) as fleet:
        _wait_until_shared_out(app, fleet, topic, consumers)
        # Built before the clock runs: a user has the values too.
        batches = list(chunks(workload.outgoing(), _PUBLISH_BATCH))
        sent_s = []
        for batch in batches:
            sent_s.append(time.time())
            app.publish_many(topic, batch)
        _wait_for_all(app, fleet, messages)
        receipts = fleet.finish()
    app.delete_group(GROUP, force=True)
    app.delete_topic(topic, force=True)
    first_s: dict[int, float] = {}
    for number, at_s in zip(receipts.numbers, receipts.at_s, strict=True):
        first_s[number] = min(at_s, first_s.get(number, at_s))
    lost, duplicates = losses(messages, receipts.numbers)
    waits_s = [at_s - sent_s[number // _PUBLISH_BATCH] for number, at_s in first_s.items()] or [0.0]
    elapsed_s = max(first_s.values(), default=sent_s[0]) - sent_s[0]
    return Point(
        consumers,
        prefetch,
        messages,
        len(first_s) / elapsed_s if elapsed_s > 0 else 0.0,
        1000 * sum(waits_s) / len(waits_s),
        1000 * percentile(waits_s, 50),
        1000 * percentile(waits_s, 99),
        lost,
        duplicates,
    )


def _wait_until_shared_out(app: Coordinator, fleet: Fleet, topic: str, consumers: int) -> None:
    """Return when every partition has its owner and every consumer a partition: moves are another measurement."""
    deadline_s = time.monotonic() + _JOIN_LIMIT_S
    while True:
        owners = []
        # The first consumer makes the group.
        with suppress(NotFoundError):
            owners = [place.member_id for place in app.group_offsets(GROUP) if place.topic == topic]
        if owners and None not in owners and len({*owners}) == consumers:
            return
        if not fleet.is_running or time.monotonic() > deadline_s:
            raise UnavailableError(f"{len({*owners} - {None})} of {consumers} consumers took part; see the log above")
        time.sleep(_POLL_S)


def _wait_for_all(app: Coordinator, fleet: Fleet, messages: int) -> None:
    """Return when everything is acked, or when nothing comes any more.

    The count alone does not tell: one that came twice would hide one that has not come yet.
    """
    seen, quiet_since_s = -1, time.monotonic()
    while (count := fleet.received_count) < messages or any(place.lag for place in app.group_offsets(GROUP)):
        if count != seen:
            seen, quiet_since_s = count, time.monotonic()
        if not fleet.is_running or time.monotonic() - quiet_since_s > _SILENCE_LIMIT_S:
            return
        time.sleep(_POLL_S)
