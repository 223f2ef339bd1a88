"""The arithmetic of measurements: pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Timing:
    """One measurement.

    Attributes:
        count: Messages that went through while the time ran.
        elapsed_s: That time.
        calls_s: The time of each call, where a call is what a user waits for.
    """

    count: int
    elapsed_s: float
    calls_s: Sequence[float] = ()

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.count / self.elapsed_s if self.elapsed_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of all repeats, with the extremes."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that was measured: ours, bare, and how the two compare in each repeat.

    `ratio` is the median over the repeats of ours divided by bare: the two halves of a repeat run one after the other,
    so that a slow minute of the machine hits both.
    """

    name: str
    ours: Spread
    bare: Spread
    ratio: Spread
    wanted_ratio: float | None
    ours_p50_ms: float | None = None
    ours_p99_ms: float | None = None
    bare_p50_ms: float | None = None
    bare_p99_ms: float | None = None

    @property
    def is_below(self) -> bool:
        return self.wanted_ratio is not None and self.ratio.median < self.wanted_ratio


def case_of(name: str, ours: Sequence[Timing], bare: Sequence[Timing], wanted_ratio: float | None = None) -> Case:
    """Sum up the repeats of one case; the sequences are parallel."""
    return Case(
        name,
        Spread.of([timing.rate for timing in ours]),
        Spread.of([timing.rate for timing in bare]),
        ratio_of(ours, bare),
        wanted_ratio,
        _percentile_ms(ours, 50),
        _percentile_ms(ours, 99),
        _percentile_ms(bare, 50),
        _percentile_ms(bare, 99),
    )


def ratio_of(some: Sequence[Timing], others: Sequence[Timing]) -> Spread:
    """Compare the rates of the same repeats; the sequences are parallel."""
    return Spread.of([one.rate / other.rate if other.rate else 0.0 for one, other in zip(some, others, strict=True)])


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least `percent` of the values do not exceed; values may not be empty."""
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)]


def losses(wanted_count: int, seen: Sequence[int]) -> tuple[int, int]:
    """Return how many of the numbers 0 to wanted_count - 1 were not seen, and how many were seen again."""
    different = {number for number in seen if 0 <= number < wanted_count}
    return wanted_count - len(different), len(seen) - len(set(seen))


def _percentile_ms(timings: Sequence[Timing], percent: float) -> float | None:
    calls_s = [call_s for timing in timings for call_s in timing.calls_s]
    return 1000 * percentile(calls_s, percent) if calls_s else None
