"""A model of the log and of sql/functions/{deliveries,groups}: what PostgreSQL answers, in memory, one call at a time.

Written as naively as possible (sets of offsets, full scans) and without coordinator.core, which it is there to check.
tests/property/test_model_equals_postgres.py holds it against the real functions. Not modelled: segments, history rows of
`progress`, payloads, and whatever waits: a locked claim row answers busy, or raises LockedError where SQL would wait.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from coordinator.errors import MemberDeadError
from coordinator.model import Claim, ClaimState, GapEvidence, GroupState, PartitionKey, Resolved, Row, Settled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from uuid import UUID

Range = tuple[int, int]

ENDLESS = 1 << 40


class LockedError(Exception):
    """Somebody holds a claim's row for longer than lock_timeout."""


class Progress(NamedTuple):
    """One row of `progress`; `done` as a set of offsets."""

    seq: int
    epoch: int
    committed: int
    hwm: int
    done: frozenset[int]


class Entry(NamedTuple):
    """One claim's part of an exchange."""

    key: PartitionKey
    epoch: int
    seq: int
    hwm: int
    settled: Sequence[Range]
    want: int


@dataclass(eq=False)
class Publisher:
    """A transaction that publishes. `taken` holds its offsets by (topic, partition)."""

    name: str
    taken: dict[tuple[int, int], list[tuple[int, str | None]]] = field(default_factory=dict)
    open: bool = True


@dataclass
class Log:
    """One partition of a topic: V, visible rows, offsets that can't become rows any more, and who is publishing."""

    high: int = -1
    rows: dict[int, str | None] = field(default_factory=dict)
    burnt: set[int] = field(default_factory=set)
    publishers: list[Publisher] = field(default_factory=list)


@dataclass
class ClaimRow:
    owner: UUID | None = None
    epoch: int = 0
    history: list[Progress] = field(default_factory=list)

    @property
    def newest(self) -> Progress:
        return self.history[-1]

    def write(self, epoch: int, committed: int, hwm: int, done: Iterable[int]) -> Progress:
        """Insert what follows the newest row; laws I2, I3 (never backwards) and I7 hold at every write."""
        last = self.newest
        new = Progress(last.seq + 1, epoch, committed, hwm, frozenset(done))
        assert last.committed <= committed <= hwm, f"I2: {last} then {new}"
        assert committed not in new.done, f"I2: committed is not normalised: {new}"
        assert all(offset > committed for offset in new.done), f"I2: done below committed: {new}"
        assert epoch >= last.epoch, f"I7: {last} then {new}"
        self.history.append(new)
        return new


@dataclass
class Coordinator:
    lease_until_s: float
    lease_s: float
    state: str = "alive"


@dataclass
class Group:
    version: int = 1
    planned_version: int = 0
    members: dict[UUID, frozenset[int]] = field(default_factory=dict)
    targets: dict[tuple[int, int], UUID] = field(default_factory=dict)


class FakeDatabase:
    """The tables. `locked` holds claims whose row somebody else has locked; `now_s` is what coordinator.now_() says."""

    def __init__(self, topics: Mapping[int, int], groups: Mapping[int, Sequence[int]]) -> None:
        """`topics` says how many partitions each has, `groups` which topics each reads, both by id."""
        self.now_s = 0.0
        self.logs = {(topic, partition): Log() for topic, count in topics.items() for partition in range(count)}
        self.groups = {group: Group() for group in groups}
        self.claims = {
            PartitionKey(group, topic, partition): ClaimRow(history=[Progress(0, 0, 0, 0, frozenset())])
            for group, read in groups.items()
            for topic in read
            for partition in range(topics[topic])
        }
        self.coordinators: dict[UUID, Coordinator] = {}
        self.locked: set[PartitionKey] = set()
        self.refused_count = 0
        self._publisher_count = 0

    # ---- publishing

    def begin(self) -> Publisher:
        self._publisher_count += 1
        return Publisher(f"3/{self._publisher_count}")

    def publish(self, publisher: Publisher, topic: int, partition: int, key: str | None = None) -> int:
        """Take the shared lock, then an offset; the row is visible once the publisher commits."""
        log = self.logs[topic, partition]
        if publisher not in log.publishers:
            log.publishers.append(publisher)
        log.high += 1
        publisher.taken.setdefault((topic, partition), []).append((log.high, key))
        return log.high

    def end(self, publisher: Publisher, *, commit: bool) -> None:
        """Make the rows visible or burn the offsets, then let go of the locks."""
        publisher.open = False
        for place, taken in publisher.taken.items():
            log = self.logs[place]
            if commit:
                log.rows.update(taken)
            else:
                log.burnt.update(offset for offset, _ in taken)
            log.publishers.remove(publisher)

    def published(self, topic: int, partition: int, count: int = 1) -> list[int]:
        """Publish and commit messages without a key."""
        publisher = self.begin()
        offsets = [self.publish(publisher, topic, partition) for _ in range(count)]
        self.end(publisher, commit=True)
        return offsets

    # ---- deliveries

    def exchange(self, coordinator: UUID, entries: Sequence[Entry]) -> list[Settled]:
        answers = []
        for ord_, entry in enumerate(entries, 1):
            high = self.logs[entry.key[1:]].high if entry.key[1:] in self.logs else -1
            status, new = self._exchange_one(coordinator, entry, high)
            if new is None:
                answers.append(Settled(ord_, status, None, None, None, high))
            else:
                answers.append(Settled(ord_, status, new.seq, new.committed, new.hwm, high))
        return answers

    def _exchange_one(self, coordinator: UUID, entry: Entry, high: int) -> tuple[str, Progress | None]:
        if not (entry.settled or (entry.want > 0 and high >= entry.hwm)):
            return "idle", None
        claim = self.claims.get(entry.key)
        if claim is not None and entry.key in self.locked:
            return "busy", None
        if claim is None or claim.owner != coordinator or claim.epoch != entry.epoch:
            self.refused_count += 1
            return "fenced", None
        last = claim.newest
        if last.seq != entry.seq:
            return "stale", None
        window = range(last.committed, last.hwm)
        done = set(last.done) | {offset for offset in _offsets(entry.settled) if offset in window}
        committed = last.committed
        while committed in done:
            committed += 1
        hwm = max(last.hwm, committed, min(high + 1, last.hwm + entry.want))
        return "ok", claim.write(entry.epoch, committed, hwm, (offset for offset in done if offset > committed))

    def fetch(self, reads: Sequence[tuple[PartitionKey, int, Sequence[Range]]]) -> list[Row]:
        """`reads`: claim, epoch, and the ranges that its owner has not read."""
        rows = []
        for ord_, (key, epoch, ranges) in enumerate(reads, 1):
            claim = self.claims.get(key)
            if claim is None or claim.newest.epoch != epoch:
                continue
            _, _, committed, hwm, done = claim.newest
            rows += [
                row
                for row in self._rows(ord_, key.topic_id, key.partition, ranges)
                if committed <= row.offset < hwm and row.offset not in done
            ]
        return rows

    def gap_pass(
        self, gaps: Sequence[tuple[int, int, Sequence[Range]]], between: Callable[[], object] = lambda: None
    ) -> dict[int, GapEvidence]:
        """V, then L, then S; `between` is called between the snapshots, where other transactions may go on."""
        highs = [self.logs[topic, partition].high for topic, partition, _ in gaps]
        between()
        holders = [
            tuple(sorted(p.name for p in self.logs[topic, partition].publishers)) for topic, partition, _ in gaps
        ]
        between()
        return {
            ord_: GapEvidence(highs[ord_ - 1], holders[ord_ - 1], self._rows(ord_, topic, partition, ranges))
            for ord_, (topic, partition, ranges) in enumerate(gaps, 1)
        }

    def _rows(self, ord_: int, topic: int, partition: int, ranges: Sequence[Range]) -> list[Row]:
        rows = self.logs[topic, partition].rows
        return [
            Row(ord_, offset, None, None, rows[offset], None, None, b"")  # type: ignore[arg-type]
            for offset in sorted(rows)
            if any(lo <= offset < hi for lo, hi in ranges)
        ]

    def resolve(self, coordinator: UUID, claims: Sequence[tuple[PartitionKey, int]]) -> list[Resolved]:
        """Raises LockedError where SQL would wait for longer than lock_timeout."""
        answers = []
        for key, epoch in claims:
            if key in self.locked:
                raise LockedError(key)
            claim = self.claims.get(key)
            if claim is None:
                answers.append(Resolved("fenced", 0, 0, 0, ()))
                continue
            status = "ok" if claim.owner == coordinator and claim.epoch == epoch else "fenced"
            newest = claim.newest
            answers.append(Resolved(status, newest.seq, newest.committed, newest.hwm, _ranges(newest.done)))
        return answers

    # ---- groups

    def claim(self, coordinator: UUID, wanted: Sequence[PartitionKey]) -> list[Claim]:
        if coordinator not in self.coordinators or self.coordinators[coordinator].state != "alive":
            raise MemberDeadError(str(coordinator))
        taken = []
        for key in sorted(set(wanted)):
            claim = self.claims.get(key)
            if claim is None or key in self.locked or not (claim.owner == coordinator or self._free(claim.owner)):
                continue
            takeover = claim.owner is not None
            claim.owner = coordinator
            claim.epoch += 1
            new = claim.write(claim.epoch, claim.newest.committed, claim.newest.committed, claim.newest.done)
            taken.append(Claim(key, claim.epoch, new.seq, new.committed, _ranges(new.done), takeover))
        return taken

    def release(self, coordinator: UUID, claims: Sequence[tuple[PartitionKey, int]]) -> int:
        count = 0
        for key, epoch in claims:
            claim = self.claims.get(key)
            if claim is None or key in self.locked or claim.owner != coordinator or claim.epoch != epoch:
                continue
            last = claim.newest
            claim.write(last.epoch, last.committed, last.committed, last.done)
            claim.owner = None
            count += 1
        return count

    def register(self, coordinator: UUID, lease_s: float) -> None:
        self.coordinators[coordinator] = Coordinator(self.now_s + lease_s, lease_s)

    def join(self, coordinator: UUID, group: int, topics: Iterable[int]) -> None:
        if self.coordinators[coordinator].state == "dead":
            raise MemberDeadError(str(coordinator))
        self.groups[group].members[coordinator] = frozenset(topics)
        self.groups[group].version += 1

    def heartbeat(self, coordinator: UUID) -> None:
        row = self.coordinators.get(coordinator)
        if row is None or row.state == "dead":
            raise MemberDeadError(str(coordinator))
        row.lease_until_s = self.now_s + row.lease_s

    def reap(self, observed_s: float) -> list[UUID]:
        dead = [
            coordinator
            for coordinator, row in self.coordinators.items()
            if row.state != "dead" and row.lease_until_s < self.now_s and row.lease_s <= observed_s
        ]
        for coordinator in dead:
            self.coordinators[coordinator].state = "dead"
            self._drop_member(coordinator)
        return dead

    def leave(self, coordinator: UUID) -> None:
        self._drop_member(coordinator)
        row = self.coordinators.get(coordinator)
        if row is not None and row.state != "dead" and all(c.owner != coordinator for c in self.claims.values()):
            del self.coordinators[coordinator]

    def group_state(self, groups: Iterable[int]) -> list[GroupState]:
        return [
            GroupState(
                group_id,
                self.groups[group_id].version,
                self.groups[group_id].planned_version,
                dict(self.groups[group_id].members),
                [
                    ClaimState(
                        key.topic_id,
                        key.partition,
                        claim.owner,
                        self._free(claim.owner),
                        self.groups[group_id].targets.get((key.topic_id, key.partition)),
                    )
                    for key, claim in sorted(self.claims.items())
                    if key.group_id == group_id
                ],
            )
            for group_id in groups
        ]

    def store_plan(self, group_id: int, version: int, owners: Sequence[tuple[tuple[int, int], UUID]]) -> bool:
        group = self.groups[group_id]
        if group.version != version or group.planned_version >= version:
            return False
        group.targets = dict(owners)
        group.planned_version = version
        return True

    def _free(self, owner: UUID | None) -> bool:
        return owner not in self.coordinators or self.coordinators[owner].state == "dead"

    def _drop_member(self, coordinator: UUID) -> None:
        for group in self.groups.values():
            if group.members.pop(coordinator, None) is not None:
                group.version += 1


def _offsets(ranges: Iterable[Range]) -> list[int]:
    return [offset for lo, hi in ranges for offset in range(lo, hi)]


def _ranges(offsets: Iterable[int]) -> tuple[Range, ...]:
    found: list[Range] = []
    for offset in sorted(offsets):
        if found and found[-1][1] == offset:
            found[-1] = (found[-1][0], offset + 1)
        else:
            found.append((offset, offset + 1))
    return tuple(found)
