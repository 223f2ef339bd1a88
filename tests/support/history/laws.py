"""What the checks of invariants share: how they are registered, what a violation is, and looks at a claim."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from support.history.model import FOREVER, ClaimKey, ClaimState, History, Progress, Range, Run, stamp

# Times of one host, some by PostgreSQL and some by Python, rounded differently.
CLOCK_S = 0.001


@dataclass(frozen=True, slots=True)
class Violation:
    """law: "I5". where: a claim and an offset, or a process. evidence: the events and rows, a line each."""

    law: str
    where: str
    text: str
    evidence: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join([f"{self.law}  {self.where}: {self.text}", *(f"      {line}" for line in self.evidence)])


@dataclass(slots=True)
class Tally:
    """What a check has looked at; one that has seen nothing has shown nothing."""

    count: int = 0
    notes: list[str] = field(default_factory=list)


Check = Callable[[History, Tally], Iterator[Violation]]


@dataclass(frozen=True, slots=True)
class Law:
    """needs: "tables", "record", "audit" (the flight recorder), "rest" (everything has come to rest)."""

    name: str
    text: str
    needs: frozenset[str]
    check: Check


LAWS: list[Law] = []


def law(name: str, text: str, *needs: str) -> Callable[[Check], Check]:
    """Register a check of an invariant; one invariant may have several."""

    def enter(check: Check) -> Check:
        LAWS.append(Law(name, text, frozenset(needs), check))
        return check

    return enter


def at(key: ClaimKey, offset: int) -> str:
    return f"{key}@{offset}"


def runs_of(history: History, key: ClaimKey, offset: int) -> tuple[str, ...]:
    """The deliveries of one message, as evidence."""
    found = sorted((run for run in history.runs.get(key, ()) if run.offset == offset), key=lambda run: run.start_at)
    return tuple(str(run) for run in found) or ("no process has started it",)


def by_offset(runs: list[Run]) -> dict[int, list[Run]]:
    """Deliveries per message, in the order of epochs and starts."""
    found: dict[int, list[Run]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: (run.epoch, run.start_at)):
        found[run.offset].append(run)
    return found


def replayed(state: ClaimState) -> set[int]:
    """Messages that were given back after they had died: outside of every order, and begun anew."""
    return {version.offset for version in state.parked if version.replays} | {
        offset for offset, buried in _buried(state).items() if buried > 1
    }


def _buried(state: ClaimState) -> dict[int, int]:
    count: dict[int, int] = defaultdict(int)
    for buried in state.buried:
        count[buried.offset] += buried.op == "insert"
    return count


def ranges_without(ranges: tuple[Range, ...], taken: tuple[Range, ...]) -> Iterator[Range]:
    """Yield what of ascending ranges is not in the others."""
    place = 0
    for lo, hi in ranges:
        while place < len(taken) and taken[place][1] <= lo:
            place += 1
        at_, next_ = lo, place
        while next_ < len(taken) and taken[next_][0] < hi:
            if taken[next_][0] > at_:
                yield at_, taken[next_][0]
            at_ = max(at_, taken[next_][1])
            next_ += 1
        if at_ < hi:
            yield at_, hi


def whole(progress: Progress, start: int) -> tuple[Range, ...]:
    """Everything that a row says is settled or parked, from the group's start."""
    below = ((start, progress.committed),) if progress.committed > start else ()
    if below and progress.done and progress.done[0][0] == progress.committed:
        return ((start, progress.done[0][1]), *progress.done[1:])
    return below + progress.done


def settled_at(state: ClaimState) -> dict[int, float]:
    """When the COMMIT was that settled, or parked, each offset for the first time; by the flight recorder."""
    found: dict[int, float] = {}
    before: tuple[Range, ...] = ()
    for row in state.progress:
        now = whole(row, state.start_offset)
        for lo, hi in ranges_without(now, before):
            for offset in range(lo, hi):
                found.setdefault(offset, row.commit_at)
        before = now
    for acked in state.acked:
        found[acked.offset] = min(found.get(acked.offset, FOREVER), acked.commit_at)
    return found


class Windows:
    """When which window was committed, per epoch."""

    def __init__(self, state: ClaimState) -> None:
        self._highs: dict[int, list[int]] = defaultdict(list)
        self._times: dict[int, list[float]] = defaultdict(list)
        for row in state.progress:
            highs = self._highs[row.epoch]
            if not highs or row.hwm > highs[-1]:
                highs.append(row.hwm)
                self._times[row.epoch].append(row.commit_at)

    def commit_at(self, epoch: int, offset: int) -> float:
        """When the first window of an epoch was committed that holds the offset; FOREVER if none was."""
        place = bisect_right(self._highs[epoch], offset)
        return self._times[epoch][place] if place < len(self._times[epoch]) else FOREVER


def describe(row: Progress) -> str:
    return (
        f"{stamp(row.commit_at)} progress seq {row.seq} epoch {row.epoch} (claim: epoch {row.claim_epoch}, owner {row.owner}) "
        f"committed {row.committed} hwm {row.hwm} done {len(row.done)} ranges {list(row.done[:3])}, by {row.application!r}"
    )


def around(state: ClaimState, moment: float, count: int = 4) -> tuple[str, ...]:
    """The rows that were written just before and after a moment, as evidence."""
    place = sum(row.commit_at < moment for row in state.progress)
    return tuple(describe(row) for row in state.progress[max(place - count, 0) : place + count])
