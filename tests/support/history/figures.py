"""What long runs are judged by: the rate that was asked for, sizes that stay what they are, exchanges that stay as fast."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from support.history.laws import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from support.history.model import History

# Of a rate that was asked for, in seconds that no fault of the server or of a publisher has disturbed.
RATE_SHARE = 0.95
# In fewer of them a pause of the garbage collector or the disk decides.
FEWEST_SECONDS = 20
# For how long a restart, or a publisher's death, counts as a disturbance: connections come back with a backoff.
DISTURBED_S = 10.0
# What a size may grow by: a share, and what a catalogue, a vacuum's delay or an allocator's whim comes to.
TABLES = (1.5, 4 << 20)
MEMORY = (1.15, 8 << 20)
# A process that was looked at less often has not lived long enough to be compared with itself.
FEWEST_LOOKS = 16


@dataclass(frozen=True, slots=True)
class Growth:
    """The largest size in the second quarter of a time, and in its last: the first is for what has to grow once."""

    what: str
    was: int
    now: int
    factor: float
    slack_bytes: int

    @property
    def most(self) -> int:
        return round(self.was * self.factor + self.slack_bytes)

    @property
    def too_much(self) -> bool:
        return self.was > 0 and self.most < self.now

    def __str__(self) -> str:
        return f"{self.what}: {self.was / 1e6:.1f} MB, then {self.now / 1e6:.1f} MB"


def growths(samples: Sequence[Mapping[str, Any]]) -> Iterator[Growth]:
    """Compare sizes at the beginning and the end.

    Tables over the whole run. Memory in two ways, because processes are replaced: each process that lived long enough with itself, over
    its own life; and all that took one slot with each other, over the run, so that nobody hides a growth by being replaced.

    Args:
        samples: In order; each with "tables" (bytes by name) and "memory" (bytes by process, named SLOT.NUMBER).
    """
    tables: dict[str, list[int]] = defaultdict(list)
    processes: dict[str, list[int]] = defaultdict(list)
    slots: dict[str, list[int]] = defaultdict(list)
    for sample in samples:
        for name, size in sample["tables"].items():
            tables[f"table {name}"].append(size)
        largest: dict[str, int] = {}
        for name, size in sample["memory"].items():
            processes[f"memory of {name}"].append(size)
            slot = f"memory of all {name.partition('.')[0]}"
            largest[slot] = max(largest.get(slot, 0), size)
        for slot, size in largest.items():
            slots[slot].append(size)
    for found, (factor, slack_bytes) in ((tables, TABLES), (processes, MEMORY), (slots, MEMORY)):
        for what, sizes in sorted(found.items()):
            if found is not processes or len(sizes) >= FEWEST_LOOKS:
                yield Growth(what, _largest(sizes, 1), _largest(sizes, 3), factor, slack_bytes)


def _largest(sizes: Sequence[int], quarter: int) -> int:
    size = len(sizes) // 4
    return max(sizes[quarter * size : (quarter + 1) * size if quarter < 3 else None], default=0)


def publish_rate(history: History) -> tuple[float, int]:
    """Messages per second whose COMMIT was told, and in how many undisturbed seconds."""
    begin, enough = history.moment("begin"), history.moment("enough")
    if begin is None or enough is None:
        return 0.0, 0
    count = [0] * math.floor(enough - begin)
    for publish in history.publishes:
        second = math.floor(min(publish.told_at, enough) - begin)
        if publish.outcome == "returned" and 0 <= second < len(count):
            count[second] += len(publish.values)
    quiet = [number for second, number in enumerate(count) if not _disturbed(history, begin + second)]
    return sum(quiet) / max(len(quiet), 1), len(quiet)


def _disturbed(history: History, second: float) -> bool:
    """Whether the server, or a publisher, has been away in this second or shortly before; at the beginning all come up."""
    away = False
    for event in history.driver:
        kind, since_s = event["event"], second + 1 - event["at"]
        if since_s < 0:
            break
        if kind in ("shut down", "start"):
            away = kind == "shut down"
        harmed = kind in ("begin", "restart", "start", "promote") or (
            kind == "kill" and event["process"].startswith("p")
        )
        if harmed and since_s < DISTURBED_S + 1:
            return True
    return away


def too_slow(history: History, asked: float) -> Iterator[Violation]:
    rate, seconds = publish_rate(history)
    if seconds >= FEWEST_SECONDS and rate < RATE_SHARE * asked:
        yield Violation(
            "run", "publishers", f"{rate:.0f} messages/s in {seconds} undisturbed seconds, of {asked:g} asked for"
        )


def exchange_times(history: History, from_s: float, to_s: float) -> list[float]:
    """Milliseconds of all exchanges that ended between two moments, ascending."""
    return sorted(
        tenths / 10
        for process in history.processes.values()
        for at, found in process.exchanges
        if from_s < at <= to_s
        for tenths in found
    )


def percentile(ascending: Sequence[float], share: float) -> float:
    return ascending[min(len(ascending) - 1, int(share * len(ascending)))] if ascending else 0.0


def first_and_last(history: History) -> tuple[list[float], list[float]]:
    """Exchanges of the first minute and of the last in which there was anything to do."""
    begin, enough = history.moment("begin") or 0.0, history.moment("enough") or 0.0
    return exchange_times(history, begin, begin + 60), exchange_times(history, enough - 60, enough)


def slowed(history: History) -> Iterator[Violation]:
    """At most twice as slow at the 99th percentile in the last minute as in the first."""
    was, now = (percentile(found, 0.99) for found in first_and_last(history))
    if now > 2 * was:
        yield Violation("I15", "exchange", f"p99 rose from {was:.1f} ms to {now:.1f} ms while a snapshot was held")


def uncharged(history: History) -> Iterator[Violation]:
    """Nobody's crash: no message was charged, none is dead, and every process is the one that was started."""
    for key, state in history.claims.items():
        if state.crashed or any(version.crashes for version in state.parked):
            yield Violation("R6", str(key), "a crash was charged, and nobody had crashed")
        if state.buried:
            yield Violation("R6", str(key), f"{len(state.buried)} messages were dead-lettered")
    others = [event["process"] for event in history.driver if event["event"] == "gone"]
    if others:
        yield Violation("R6", "processes", f"ended, and were to live through it: {others}")


def summary(history: History, asked: float) -> Iterator[str]:
    """Yield the figures of a run, for people."""
    rate, seconds = publish_rate(history)
    yield f"published {rate:.0f} messages/s in {seconds} undisturbed seconds, of {asked:g} asked for"
    for name, found in zip(("first", "last"), first_and_last(history), strict=True):
        yield (
            f"exchanges of the {name} minute: {len(found)}, p50 {percentile(found, 0.5):.1f} ms, "
            f"p99 {percentile(found, 0.99):.1f} ms"
        )
    lags = [event["lag"] for event in history.driver if event["event"] == "sample" and event["lag"] is not None]
    if lags:
        half = sorted(lags)[len(lags) // 2]
        yield f"messages behind, of all groups: {half:,} in the middle, {max(lags):,} at most, {lags[-1]:,} at the end"
