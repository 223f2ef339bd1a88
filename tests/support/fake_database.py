"""A model of the log and of sql/functions/{deliveries,groups,dead_letters}: what PostgreSQL answers, one call at a time.

Written as naively as possible (sets of offsets, full scans) and without coordinator.core, which it is there to check.
tests/property/test_model_equals_postgres.py holds it against the real functions. Not modelled: segments, history rows of
`progress`, payloads, error histories, and whatever waits: a locked claim row answers busy, or raises LockedError where SQL
would wait.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from coordinator.errors import AlreadySettledError, MemberDeadError, StaleEpochError
from coordinator.model import (
    Claim,
    ClaimState,
    Crash,
    Due,
    Facts,
    GapEvidence,
    GroupState,
    Parked,
    PartitionKey,
    Resolved,
    Row,
    Settled,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any
    from uuid import UUID

Range = tuple[int, int]

ENDLESS = 1 << 40
WOKEN_AT_ONCE = 500

# Where the SQL does not do what it should; the model does, unless it is told to be as wrong. Each has a failing test in
# tests/property/test_model_equals_postgres.py.
#   fold window: claim forgets acks of handlers' transactions at or above hwm, which a release has lowered.
#   fold replay: claim deletes the retries row of a replayed dead letter for the ack or guard of its life before.
#   charge replay: charge_crash does not charge a replayed dead letter for the same reason.
#   wake head: claim leaves behind a message of whose key one above it is not behind: each waits for the other.
SQL_BUGS: frozenset[str] = frozenset()


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
    hard: Sequence[Mapping[str, Any]] = ()


@dataclass(eq=False)
class Publisher:
    """A transaction that publishes. `taken` holds its offsets by (topic, partition)."""

    name: str
    taken: dict[tuple[int, int], list[tuple[int, str | None]]] = field(default_factory=dict)
    open: bool = True


@dataclass
class Log:
    """One partition of a topic: V, visible rows, offsets that can't become rows any more, and who is publishing.

    shown: the tick at which a row became visible. by_key: the visible offsets of each key.
    """

    high: int = -1
    rows: dict[int, str | None] = field(default_factory=dict)
    shown: dict[int, int] = field(default_factory=dict)
    by_key: dict[str | None, list[int]] = field(default_factory=lambda: defaultdict(list))
    burnt: set[int] = field(default_factory=set)
    publishers: list[Publisher] = field(default_factory=list)


@dataclass
class RetryRow:
    """A row of `retries`. payload: it has the message with it, as a replayed dead letter does."""

    key: str | None
    fails: int
    crashes: int
    next_at_s: float
    behind: bool = False
    dispatched: int | None = None
    alone: bool = False
    crashed_by: UUID | None = None
    crash_next_s: float | None = None
    replays: int = 0
    payload: bool = False


@dataclass
class CrashRow:
    coordinator: UUID
    offsets: frozenset[int]
    at_s: float
    alone: bool = False


@dataclass
class DeadRow:
    key: str | None
    reason: str
    attempts: int
    crashes: int
    replays: int


@dataclass
class ClaimRow:
    """A row of `claims` and what hangs on it: progress; retries and dead letters by offset, crashes by epoch, acks.

    buried: every dead letter that was ever written.
    """

    owner: UUID | None = None
    epoch: int = 0
    history: list[Progress] = field(default_factory=list)
    retries: dict[int, RetryRow] = field(default_factory=dict)
    crashes: dict[int, CrashRow] = field(default_factory=dict)
    acks: dict[tuple[int, int], int] = field(default_factory=dict)
    dead: dict[int, DeadRow] = field(default_factory=dict)
    buried: list[tuple[int, DeadRow]] = field(default_factory=list)

    @property
    def newest(self) -> Progress:
        return self.history[-1]

    def write(self, epoch: int, committed: int, hwm: int, done: Iterable[int]) -> Progress:
        """Insert what follows the newest row; laws I2, I3 (never backwards) and I7 hold at every write."""
        last = self.newest
        new = Progress(last.seq + 1, epoch, committed, hwm, frozenset(done))
        for offset in self.retries:
            assert offset < committed or offset in new.done, f"I2: {offset} is parked and neither done nor below: {new}"
        assert last.committed <= committed <= hwm, f"I2: {last} then {new}"
        assert committed not in new.done, f"I2: committed is not normalised: {new}"
        assert all(offset > committed for offset in new.done), f"I2: done below committed: {new}"
        assert epoch >= last.epoch, f"I7: {last} then {new}"
        self.history.append(new)
        return new

    def crash_count(self, offset: int) -> int:
        return sum(offset in crash.offsets for crash in self.crashes.values())

    def wake_behind(self, epoch: int, key: str | None, now_s: float) -> None:
        behind = sorted(o for o, row in self.retries.items() if row.behind and key is not None and row.key == key)
        for offset in behind[:WOKEN_AT_ONCE]:
            row = self.retries[offset]
            row.behind, row.dispatched, row.next_at_s = False, epoch, now_s


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

    def __init__(
        self, topics: Mapping[int, int], groups: Mapping[int, Sequence[int]], bugs: frozenset[str] = frozenset()
    ) -> None:
        """`topics` says how many partitions each has, `groups` which topics each reads, both by id. `bugs`: of SQL_BUGS."""
        self.bugs = bugs
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
        self.ticks = 0
        self.unstorable: set[tuple[PartitionKey, int]] = set()
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
        self.ticks += 1
        for place, taken in publisher.taken.items():
            log = self.logs[place]
            if commit:
                log.rows.update(taken)
                for offset, key in taken:
                    log.shown[offset] = self.ticks
                    log.by_key[key].append(offset)
            else:
                log.burnt.update(offset for offset, _ in taken)
            log.publishers.remove(publisher)

    def published(self, topic: int, partition: int, count: int = 1, keys: Sequence[str | None] = (None,)) -> list[int]:
        """Publish and commit messages; the keys are taken in turn."""
        publisher = self.begin()
        offsets = [self.publish(publisher, topic, partition, keys[n % len(keys)]) for n in range(count)]
        self.end(publisher, commit=True)
        return offsets

    # ---- deliveries

    def exchange(self, coordinator: UUID, entries: Sequence[Entry]) -> list[Settled]:
        answers = []
        for ord_, entry in enumerate(entries, 1):
            high = self.logs[entry.key[1:]].high if entry.key[1:] in self.logs else -1
            refused: list[int] = []
            status, new = self._exchange_one(coordinator, entry, high, refused)
            refusal = "no such message" if refused else None
            if new is None:
                answers.append(Settled(ord_, status, None, None, None, high, 0, refused or None, refusal))
            else:
                holes = len(_ranges(new.done))
                answers.append(
                    Settled(ord_, status, new.seq, new.committed, new.hwm, high, holes, refused or None, refusal)
                )
        return answers

    def _exchange_one(
        self, coordinator: UUID, entry: Entry, high: int, refused: list[int]
    ) -> tuple[str, Progress | None]:
        if not (entry.settled or entry.hard or (entry.want > 0 and high >= entry.hwm)):
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
        finished = set(_offsets(entry.settled))
        wakes: list[str | None] = []
        for line in entry.hard:
            finished |= self._settle_hard(entry.key, claim, line, refused, wakes)
        for name in dict.fromkeys(wakes):
            claim.wake_behind(claim.epoch, name, self.now_s)
        window = range(last.committed, last.hwm)
        done = set(last.done) | {offset for offset in finished if offset in window}
        committed = last.committed
        while committed in done:
            committed += 1
        hwm = max(last.hwm, committed, min(high + 1, last.hwm + entry.want))
        if any(line["k"] == "empty" for line in entry.hard):
            hwm = committed
        return "ok", claim.write(entry.epoch, committed, hwm, (offset for offset in done if offset > committed))

    def _settle_hard(
        self, key: PartitionKey, claim: ClaimRow, line: Mapping[str, Any], refused: list[int], wakes: list[str | None]
    ) -> set[int]:
        """One entry; returns what becomes done. `wakes`: keys of which the next are handed out at the end."""
        kind, offset, epoch = line["k"], line.get("offset"), claim.epoch
        if kind == "retry":
            row = claim.retries.get(offset)
            if row is None:
                row = claim.retries[offset] = RetryRow(
                    line["key"], 0, claim.crash_count(offset), 0.0, replays=line["replays"]
                )
            row.fails += 1
            row.next_at_s = max(self.now_s + line["delay_s"], row.crash_next_s or 0.0)
            row.crash_next_s = None
            row.dispatched = epoch if line["running"] else None
            row.behind = False
            return {offset}
        if kind == "behind":
            for parked in line["offsets"]:
                if parked not in claim.retries:
                    claim.retries[parked] = RetryRow(line["key"], 0, claim.crash_count(parked), self.now_s, behind=True)
            first = min(line["offsets"])
            if not any(o < first and row.key == line["key"] and not row.behind for o, row in claim.retries.items()):
                wakes.append(line["key"])
            return set(line["offsets"])
        if kind == "alone":
            row = claim.retries.get(offset)
            if row is None:
                row = claim.retries[offset] = RetryRow(
                    line["key"], 0, claim.crash_count(offset), self.now_s, replays=line["replays"]
                )
            row.dispatched, row.behind = epoch, False
            return {offset}
        if kind == "empty":
            for row in claim.retries.values():
                row.dispatched = None
        elif kind == "dead":
            if not self._bury(key, claim, line):
                refused.append(offset)
                return set()
            wakes.append(line["key"])
            return {offset}
        elif kind == "clear":
            claim.retries.pop(offset, None)
            wakes.append(line["key"])
        elif kind == "fold":
            claim.acks = {ack: at for ack, at in claim.acks.items() if ack[0] not in line["offsets"]}
        elif kind == "charged":
            below = [e for e, crash in claim.crashes.items() if max(crash.offsets) < line["committed"]]
            for crashed in below:
                del claim.crashes[crashed]
        else:
            raise AssertionError(line)
        return set()

    def _bury(self, key: PartitionKey, claim: ClaimRow, line: Mapping[str, Any]) -> bool:
        """Write one dead letter; False, and nothing is written, where that fails."""
        offset = line["offset"]
        row = claim.retries.get(offset)
        replays = row.replays if row is not None else line["replays"]
        if line["guard"] and (offset, line["replays"]) in claim.acks:
            claim.retries.pop(offset, None)
            return True
        if (key, offset) in self.unstorable:
            return False
        rows = self.logs[key[1:]].rows
        if offset not in rows and not (row is not None and row.payload):
            return False
        if line["guard"]:
            claim.acks[offset, line["replays"]] = claim.epoch
        claim.retries.pop(offset, None)
        buried = DeadRow(rows.get(offset), line["reason"], line["attempts"], line["crashes"], replays)
        if row is not None and row.payload:
            buried.key = row.key
        known = claim.dead.get(offset)
        if known is None:
            claim.dead[offset] = buried
        else:
            known.reason, known.attempts, known.crashes = buried.reason, buried.attempts, buried.crashes
            known.replays = max(known.replays, replays)
        claim.buried.append((offset, buried))
        return True

    def dispatch_due(self, coordinator: UUID, asked: Sequence[tuple[PartitionKey, int, int]]) -> list[Due]:
        """`asked`: claim, epoch, and how many may be handed out."""
        for key, epoch, max_count in asked:
            claim = self.claims.get(key)
            if claim is None or key in self.locked or claim.owner != coordinator or claim.epoch != epoch:
                continue
            due = [o for o, row in claim.retries.items() if self._waits(row, epoch) and row.next_at_s <= self.now_s]
            for offset in sorted(due, key=lambda o: (claim.retries[o].next_at_s, o))[:max_count]:
                claim.retries[offset].dispatched = epoch
        answers = []
        for ord_, (key, epoch, _) in enumerate(asked, 1):
            rows = self.claims[key].retries.values() if key in self.claims else ()
            waiting = [row.next_at_s - self.now_s for row in rows if self._waits(row, epoch)]
            answers.append(Due(ord_, min(waiting, default=None)))
        return answers

    @staticmethod
    def _waits(row: RetryRow, epoch: int) -> bool:
        return not row.behind and row.dispatched != epoch

    def fetch_retries(self, asked: Sequence[tuple[PartitionKey, int, Sequence[Range]]]) -> list[Parked]:
        """`asked`: claim, epoch, and the ranges that its owner has."""
        found = []
        for ord_, (key, epoch, held) in enumerate(asked, 1):
            claim = self.claims.get(key)
            if claim is None:
                continue
            rows = self.logs[key[1:]].rows
            for offset, row in sorted(claim.retries.items()):
                if row.dispatched == epoch and not _within(held, offset) and (row.payload or offset in rows):
                    message = Row(ord_, offset, None, None, row.key, None, None, b"")  # type: ignore[arg-type]
                    found.append(Parked(message, Facts(row.fails, row.crashes, row.alone, row.replays)))
        return found

    def ack(
        self, coordinator: UUID, key: PartitionKey, epoch: int, offsets: Sequence[int], replays: Sequence[int]
    ) -> None:
        """Ack in a handler's transaction, which commits at once.

        Raises LockedError where SQL would wait, StaleEpochError, AlreadySettledError.
        """
        claim = self.claims.get(key)
        if claim is None or claim.owner != coordinator or claim.epoch != epoch:
            raise StaleEpochError
        if key in self.locked:
            raise LockedError(key)
        acks = list(zip(offsets, replays, strict=True))
        if len(set(acks)) < len(acks) or any(ack in claim.acks for ack in acks):
            raise AlreadySettledError
        claim.acks.update(dict.fromkeys(acks, epoch))
        for offset in offsets:
            claim.retries.pop(offset, None)

    def replay(self, key: PartitionKey, offsets: Sequence[int], max_parked: int = 10_000) -> list[tuple[int, str]]:
        """Give dead letters back. Raises LockedError where SQL would wait."""
        if key in self.locked:
            raise LockedError(key)
        claim = self.claims[key]
        room = max_parked - len(claim.retries)
        outcomes = []
        for offset in offsets:
            if room <= 0:
                outcomes.append((offset, "full"))
                continue
            dead = claim.dead.pop(offset, None)
            if dead is None:
                outcomes.append((offset, "gone"))
                continue
            claim.retries[offset] = RetryRow(dead.key, 0, 0, self.now_s, replays=dead.replays + 1, payload=True)
            room -= 1
            outcomes.append((offset, "replayed"))
        return outcomes

    def fetch(self, reads: Sequence[tuple[PartitionKey, int, Sequence[Range]]]) -> list[Row]:
        """`reads`: claim, epoch, and the ranges that its owner has not read."""
        rows = []
        for ord_, (key, epoch, ranges) in enumerate(reads, 1):
            claim = self.claims.get(key)
            if claim is None or claim.newest.epoch != epoch:
                continue
            _, _, committed, hwm, done = claim.newest
            windows = [(max(lo, committed), min(hi, hwm)) for lo, hi in ranges]
            rows += [row for row in self._rows(ord_, key.topic_id, key.partition, windows) if row.offset not in done]
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
        log = self.logs[topic, partition]
        return [
            Row(ord_, offset, None, None, log.rows[offset], None, None, b"")  # type: ignore[arg-type]
            for lo, hi in ranges
            for offset in range(max(lo, 0), min(hi, log.high + 1))
            if offset in log.rows
        ]

    def resolve(self, coordinator: UUID, claims: Sequence[tuple[PartitionKey, int]]) -> list[Resolved]:
        answers = []
        for key, epoch in claims:
            claim = self.claims.get(key)
            if claim is None:
                answers.append(Resolved("fenced", 0, 0, 0, ()))
                continue
            status = "ok" if claim.owner == coordinator and claim.epoch == epoch else "fenced"
            if key in self.locked:
                status = "busy"
            newest = claim.newest
            acked = _ranges({offset for offset, _ in claim.acks})
            answers.append(Resolved(status, newest.seq, newest.committed, newest.hwm, _ranges(newest.done), acked))
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
            taken.append(self._take_over(key, claim, takeover=takeover))
        return taken

    def _take_over(self, key: PartitionKey, claim: ClaimRow, *, takeover: bool) -> Claim:
        committed, done = self._fold(claim)
        new = claim.write(claim.epoch, committed, committed, (offset for offset in done if offset > committed))
        heads = [(offset, row.key) for offset, row in claim.retries.items() if not row.behind]
        for offset, row in claim.retries.items():
            above = ENDLESS if "wake head" in self.bugs else offset
            led = any(key == row.key and head < above for head, key in heads)
            if row.behind and (row.key is None or not led):
                row.behind, row.next_at_s = False, self.now_s
        claim.crashes = {e: crash for e, crash in claim.crashes.items() if max(crash.offsets) >= committed}
        return Claim(
            key,
            claim.epoch,
            new.seq,
            new.committed,
            _ranges(new.done),
            takeover,
            tuple(
                Crash(_ranges(crash.offsets), crash.alone, self.now_s - crash.at_s)
                for _, crash in sorted(claim.crashes.items(), reverse=True)
            ),
            tuple((offset, row.key) for offset, row in sorted(claim.retries.items())),
        )

    def _fold(self, claim: ClaimRow) -> tuple[int, set[int]]:
        """Take away the acks rows of a claim whose epoch ends; where it stands then, and what is done."""
        last = claim.newest
        acked = {offset for offset, _ in claim.acks}
        for offset, replays in claim.acks:
            row = claim.retries.get(offset)
            if row is not None and (row.replays == replays or "fold replay" in self.bugs):
                del claim.retries[offset]
        claim.acks.clear()
        end = last.hwm if "fold window" in self.bugs else ENDLESS
        done = set(last.done) | {offset for offset in acked if last.committed <= offset < end}
        committed = last.committed
        while committed in done:
            committed += 1
        return committed, done

    def seek(self, key: PartitionKey, wanted: int) -> tuple[int, int, int, int, int]:
        """Move a claim; from, to, skipped, parked, dead letters, as SQL answers. Raises LockedError where SQL would wait."""
        if key in self.locked:
            raise LockedError(key)
        claim = self.claims[key]
        start, done = self._fold(claim)
        to = min(max(wanted, 0), self.logs[key[1:]].high + 1)
        taken = [offset for offset in claim.retries if offset >= min(start, to)]
        skipped = len(set(range(start, to)) - done) + sum(start <= offset < to for offset in taken)
        closed = [offset for offset in claim.dead if offset >= to]
        for offset in closed:
            del claim.dead[offset]
        for offset in taken:
            row = claim.retries.pop(offset)
            if offset < to and row.payload:
                known = claim.dead.get(offset)
                attempts, replays = row.fails + row.crashes, max(row.replays, known.replays if known else 0)
                claim.dead[offset] = DeadRow(known.key if known else row.key, "skipped", attempts, row.crashes, replays)
        claim.crashes.clear()
        self._fence(claim, to, frozenset())
        return start, to, skipped, len(taken), len(closed)

    def skip(self, key: PartitionKey, offset: int, *, dead_letter: bool) -> str:
        """Settle one message: parked or open, or the SQLSTATE of the refusal. Raises LockedError where SQL would wait."""
        if key in self.locked:
            raise LockedError(key)
        claim = self.claims[key]
        acks = {
            acked
            for acked, replays in claim.acks
            if offset not in claim.retries or claim.retries[offset].replays == replays
        }
        row = claim.retries.get(offset) if offset not in acks else None
        last = claim.newest
        if row is None and (
            offset < last.committed or offset in last.done or any(acked == offset for acked, _ in claim.acks)
        ):
            return "KG004"
        rows = self.logs[key[1:]].rows
        if offset not in rows and not (row is not None and row.payload):
            return "KG003"
        committed, done = self._fold(claim)
        done |= {offset}
        while committed in done:
            committed += 1
        self._fence(claim, committed, frozenset(o for o in done if o > committed))
        claim.crashes = {e: crash for e, crash in claim.crashes.items() if max(crash.offsets) >= committed}
        if dead_letter or (row is not None and row.payload):
            fails, crashes = (row.fails, row.crashes) if row is not None else (0, 0)
            line = {
                "offset": offset,
                "reason": "skipped",
                "attempts": fails + crashes,
                "crashes": crashes,
                "guard": False,
                "replays": row.replays if row is not None else 0,
            }
            self._bury(key, claim, line)
        claim.retries.pop(offset, None)
        return "open" if row is None else "parked"

    def _fence(self, claim: ClaimRow, committed: int, done: frozenset[int]) -> None:
        claim.owner = None
        claim.epoch += 1
        for row in claim.retries.values():
            row.dispatched = None
        # Not by `write`: this is the one way in which a committed offset goes back.
        claim.history.append(Progress(claim.newest.seq + 1, claim.epoch, committed, committed, done))

    def release(self, coordinator: UUID, claims: Sequence[tuple[PartitionKey, int]]) -> int:
        count = 0
        for key, epoch in claims:
            claim = self.claims.get(key)
            if claim is None or key in self.locked or claim.owner != coordinator or claim.epoch != epoch:
                continue
            last = claim.newest
            for row in claim.retries.values():
                row.dispatched = None
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
        late = [
            coordinator
            for coordinator, row in self.coordinators.items()
            if row.state != "dead" and row.lease_until_s < self.now_s and row.lease_s <= observed_s
        ]
        dead = [coordinator for coordinator in sorted(late) if self._charge_crash(coordinator)]
        for coordinator in dead:
            self.coordinators[coordinator].state = "dead"
            self._drop_member(coordinator)
        return dead

    def _charge_crash(self, coordinator: UUID) -> bool:
        owned = [(key, claim) for key, claim in self.claims.items() if claim.owner == coordinator]
        if any(key in self.locked for key, _ in owned):
            return False
        started: list[RetryRow | CrashRow] = []
        count = 0
        for key, claim in owned:
            acked = {offset for offset, _ in claim.acks}
            for offset, row in claim.retries.items():
                settled = offset in acked if "charge replay" in self.bugs else (offset, row.replays) in claim.acks
                if row.dispatched == claim.epoch and not settled:
                    row.next_at_s = row.crash_next_s = self.now_s + min(2.0 ** min(row.crashes, 10), 300.0)
                    row.crashes += 1
                    row.dispatched, row.crashed_by, row.alone = None, coordinator, False
                    started.append(row)
                    count += 1
            newest, rows = claim.newest, self.logs[key[1:]].rows
            window = range(newest.committed, newest.hwm)
            open_ = frozenset(o for o in window if o in rows and o not in newest.done and o not in acked)
            if open_:
                claim.crashes[claim.epoch] = CrashRow(coordinator, open_, self.now_s)
                started.append(claim.crashes[claim.epoch])
                count += len(open_)
        if count == 1:
            started[0].alone = True
        return True

    def withdraw_charge(self, coordinator: UUID) -> None:
        for claim in self.claims.values():
            claim.crashes = {e: crash for e, crash in claim.crashes.items() if crash.coordinator != coordinator}
            for row in claim.retries.values():
                if row.crashed_by == coordinator:
                    row.crashes, row.crashed_by, row.alone = max(row.crashes - 1, 0), None, False
                    if row.next_at_s == row.crash_next_s:
                        row.next_at_s = min(row.next_at_s, self.now_s)
                    row.crash_next_s = None

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


def _within(ranges: Iterable[Range], offset: int) -> bool:
    return any(lo <= offset < hi for lo, hi in ranges)


def _ranges(offsets: Iterable[int]) -> tuple[Range, ...]:
    found: list[Range] = []
    for offset in sorted(offsets):
        if found and found[-1][1] == offset:
            found[-1] = (found[-1][0], offset + 1)
        else:
            found.append((offset, offset + 1))
    return tuple(found)
