"""What a coordinator is doing right now, for people who ask; the same for both shells."""

from dataclasses import dataclass
from uuid import UUID

from coordinator.consumer.listening import WakeUps
from coordinator.core.loop import Engine


@dataclass(frozen=True, slots=True)
class Running:
    """A message in the hands of a handler. `slow`: for longer than the visibility timeout."""

    group: str
    topic: str
    partition: int
    offset: int
    key: str | None
    attempt: int
    running_s: float
    slow: bool


@dataclass(frozen=True, slots=True)
class BlockedKey:
    """A key that a parked message blocks; `waiting` counts what waits for it, in memory or in the table."""

    group: str
    topic: str
    partition: int
    key: str
    waiting: int


@dataclass(frozen=True, slots=True)
class Stopped:
    """A partition of which nothing more is read before something ends.

    Attributes:
        reason: "open transactions" that have published there, or are not known yet not to have; "unsettled": messages that are in
            flight between too many that are settled; "parked": too many that wait for a retry, or behind one.
    """

    group: str
    topic: str
    partition: int
    reason: str


@dataclass(frozen=True, slots=True)
class Status:
    """One coordinator at a moment.

    Attributes:
        partitions: Claims held.
        ready: Messages in memory that are not started.
        running: In flight, the longest first; a handler that never returns stands at the head.
        parked: Messages in the retries table of the held claims.
        stopped: Partitions that have reached a bound (`max_holes`, `max_parked`).
        held_back: Nothing starts because the machine is too busy (pause_above_cpu).
        wake_ups: How new messages are noticed: "listen", "checking" (LISTEN was sent, nothing heard yet), "deaf" (nothing is
            heard: polling), "poll".
        clock_skew_s: The server's clock less this machine's; nothing depends on it. None: not asked yet.
        problems: Why it is not well, for people; empty where it is.
    """

    member_id: UUID
    partitions: int
    ready: int
    running: tuple[Running, ...]
    in_flight_bytes: int
    parked: int
    blocked_keys: tuple[BlockedKey, ...]
    stopped: tuple[Stopped, ...]
    held_back: bool
    wake_ups: WakeUps
    clock_skew_s: float | None
    problems: tuple[str, ...]

    @property
    def healthy(self) -> bool:
        """The database answers, the lease holds, and both loops live."""
        return not self.problems


def status_of(
    engine: Engine,
    member_id: UUID,
    now_s: float,
    *,
    wake_ups: WakeUps,
    clock_skew_s: float | None,
    problems: tuple[str, ...],
) -> Status:
    """Describe an engine; the caller holds its lock."""
    engine.take_in()
    partitions = list(engine.partitions.values())
    running = [
        Running(
            partition.source.group,
            partition.source.topic,
            partition.source.partition,
            delivery.offset,
            delivery.row[4],
            delivery.attempt,
            now_s - delivery.started_s,
            now_s - delivery.started_s > engine.limits.visibility_timeout_s,
        )
        for partition in partitions
        for delivery in partition.in_flight.values()
    ]
    return Status(
        member_id,
        len(partitions),
        sum(len(p.ready) + len(p.urgent) + p.lanes.waiting_count for p in partitions),
        tuple(sorted(running, key=lambda one: -one.running_s)),
        engine.heap.live_bytes,
        sum(len(p.parked) for p in partitions),
        tuple(
            BlockedKey(p.source.group, p.source.topic, p.source.partition, key, waiting)
            for p in partitions
            for key, waiting in p.lanes.blocked()
        ),
        tuple(
            Stopped(p.source.group, p.source.topic, p.source.partition, reason)
            for p in partitions
            if (reason := p.stopped_by(engine.limits.max_holes, engine.limits.max_parked))
        ),
        engine.held_back,
        wake_ups,
        clock_skew_s,
        problems,
    )
