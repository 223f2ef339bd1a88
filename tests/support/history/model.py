"""A history as the checker sees it: what processes announced, what the tables say, and what the flight recorder kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

Range = tuple[int, int]
FOREVER = float("inf")


class ClaimKey(NamedTuple):
    """Whose progress on what."""

    group: str
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.group}: {self.topic}/{self.partition}"


@dataclass(slots=True, eq=False)
class Run:
    """One delivery: from the announcement of its start to what was told of its ack.

    Attributes:
        end: What its handler said last: "ack", "fail", "reject", "die", or None where it said nothing.
        told: "returned" (the ack's COMMIT did), "raised" (it was refused), "unknown", or None where nobody waited.
        batch: Those of one number were handed over together.
    """

    process: str
    number: int
    claim: ClaimKey
    offset: int
    epoch: int
    attempt: int
    start_at: float
    value: str = ""
    key: str | None = None
    batch: int | None = None
    end: str | None = None
    end_at: float = FOREVER
    delay_s: float | None = None
    told: str | None = None
    told_at: float = FOREVER
    error: str | None = None

    def __str__(self) -> str:
        ending = f", {self.end} at {stamp(self.end_at)}" if self.end else ""
        told = (
            f", told {self.told} at {stamp(self.told_at)}{f' ({self.error})' if self.error else ''}"
            if self.told
            else ""
        )
        return (
            f"{stamp(self.start_at)} {self.process} run {self.number}: starts {self.claim}@{self.offset} in epoch {self.epoch}, "
            f"attempt {self.attempt}{ending}{told}"
        )


@dataclass(slots=True)
class Publish:
    """outcome: "returned", "rolled back", "unknown" (or nothing was told any more)."""

    process: str
    name: str
    topic: str
    values: list[str]
    at: float
    dedup: bool = False
    outcome: str = "unknown"
    told_at: float = FOREVER
    places: list[list[int]] = field(default_factory=list)


@dataclass(slots=True)
class Process:
    """facts: of its first event. died_at: when it was killed, by itself or by somebody; FOREVER if it was not.

    Attributes:
        exchanges: When it told of them, and how long each had taken, in tenths of a millisecond.
    """

    name: str
    facts: dict[str, Any] = field(default_factory=dict)
    died_at: float = FOREVER
    runs: list[Run] = field(default_factory=list)
    exchanges: list[tuple[float, list[int]]] = field(default_factory=list)


class Row(NamedTuple):
    """A message as it lies in its topic's table. commit_at: None where the server does not keep it."""

    value: str
    key: str | None
    payload: bytes
    commit_at: float | None = None


class Retry(NamedTuple):
    fails: int = 0
    crashes: int = 0
    behind_key: bool = False
    dispatched_epoch: int | None = None
    with_payload: bool = False


class Letter(NamedTuple):
    payload: bytes
    reason: str = "attempts"
    died_at: float = 0.0


class Progress(NamedTuple):
    """A row of the flight recorder: what was written, and who held the claim then."""

    seq: int
    epoch: int
    committed: int
    hwm: int
    done: tuple[Range, ...]
    claim_epoch: int
    commit_at: float
    resets: int = 0
    owner: str | None = None
    application: str = ""


class Owned(NamedTuple):
    owner: str | None
    epoch: int
    at: float


class Parked(NamedTuple):
    """A version of a retries row. at: when it was written."""

    op: str
    offset: int
    fails: int
    crashes: int
    next_at: float | None
    dispatched_epoch: int | None
    was_dispatched_epoch: int | None
    at: float
    commit_at: float
    replays: int = 0


class Acked(NamedTuple):
    offset: int
    epoch: int
    claim_epoch: int
    commit_at: float


class Buried(NamedTuple):
    op: str
    offset: int
    reason: str
    commit_at: float


class Crash(NamedTuple):
    op: str
    epoch: int
    offsets: tuple[Range, ...]
    alone: bool
    commit_at: float


@dataclass(slots=True)
class ClaimState:
    """What the tables say of one claim in one snapshot, and what the flight recorder kept of it.

    Attributes:
        high: V, the highest offset handed out. lag: as the view says.
        acks: (offset, epoch). crashes: (epoch, offsets).
        skipped: Ranges that a seek or retention passed, which were recorded as such.
    """

    start_offset: int
    committed: int
    hwm: int
    high: int
    done: tuple[Range, ...] = ()
    owner: str | None = None
    epoch: int = 1
    resets: int = 0
    lag: int = 0
    retries: dict[int, Retry] = field(default_factory=dict)
    acks: list[tuple[int, int]] = field(default_factory=list)
    crashes: list[tuple[int, tuple[Range, ...]]] = field(default_factory=list)
    letters: dict[int, Letter] = field(default_factory=dict)
    skipped: tuple[Range, ...] = ()
    progress: list[Progress] = field(default_factory=list)
    owned: list[Owned] = field(default_factory=list)
    parked: list[Parked] = field(default_factory=list)
    acked: list[Acked] = field(default_factory=list)
    buried: list[Buried] = field(default_factory=list)
    crashed: list[Crash] = field(default_factory=list)

    def settled(self, offset: int) -> bool:
        """Below committed, in done, or acked by a handler: by the tables alone; a parked one counts, too."""
        return (
            offset < self.committed
            or any(lo <= offset < hi for lo, hi in self.done)
            or any(offset == acked for acked, _ in self.acks)
        )


@dataclass(slots=True)
class History:
    """All of it.

    Attributes:
        rows: Per (topic, partition), by offset.
        members: Per group, the ids of those alive. deaths: when a member was declared dead, or left.
        doubtful: Runs whose traces a promotion may have left or undone.
        effects: (group, topic, partition, offset), as often as they are there.
        driver: What the driver did, in order: faults, "calm" (they are over), "settled", "balanced", "end".
        audited: Was there a flight recorder?
    """

    processes: dict[str, Process] = field(default_factory=dict)
    runs: dict[ClaimKey, list[Run]] = field(default_factory=dict)
    doubtful: dict[ClaimKey, list[Run]] = field(default_factory=dict)
    publishes: list[Publish] = field(default_factory=list)
    driver: list[dict[str, Any]] = field(default_factory=list)
    claims: dict[ClaimKey, ClaimState] = field(default_factory=dict)
    rows: dict[tuple[str, int], dict[int, Row]] = field(default_factory=dict)
    members: dict[str, set[str]] = field(default_factory=dict)
    deaths: dict[str, float] = field(default_factory=dict)
    clients: dict[str, str] = field(default_factory=dict)
    effects: list[tuple[str, str, int, int]] = field(default_factory=list)
    audited: bool = False
    with_record: bool = True

    def reads(self, group: str) -> dict[str, Any]:
        """How a group was read, as its processes say."""
        for process in self.processes.values():
            found = process.facts.get("groups", {}).get(group)
            if found is not None:
                return found
        return {}

    def setting(self, name: str, default: float) -> float:
        found = [process.facts[name] for process in self.processes.values() if name in process.facts]
        return max(found, default=default)

    def moment(self, event: str) -> float | None:
        """When the driver said so last."""
        found = [entry["at"] for entry in self.driver if entry["event"] == event]
        return found[-1] if found else None


def stamp(at: float) -> str:
    """A time of day, to the millisecond."""
    import time

    if at in (FOREVER, -FOREVER):
        return "never"
    return time.strftime("%H:%M:%S", time.gmtime(at)) + f".{int(at * 1000) % 1000:03d}"
