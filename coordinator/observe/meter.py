"""What a process counts, as plain numbers that are read when somebody asks; nothing here knows Prometheus.

Each number has one writer (a loop, a worker's thread, or whoever holds the lock), so counting takes no lock of its own. A
source that ends (a consumer is closed) leaves its counters behind: a counter of a process never falls.
"""

import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from coordinator.observe import metrics
from coordinator.observe.metrics import Metric

Labels = tuple[str, ...]


class Histogram:
    """Counts per bucket, and the sum. One writer."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add(self, other: "Histogram") -> None:
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.total += other.total


@dataclass(slots=True)
class Reading:
    """What was read at one moment; labels in the order of the metric's.

    withheld: Views that the server did not let us read; their gauges are missing.
    """

    counters: dict[tuple[Metric, Labels], float] = field(default_factory=dict)
    gauges: dict[tuple[Metric, Labels], float] = field(default_factory=dict)
    histograms: dict[tuple[Metric, Labels], Histogram] = field(default_factory=dict)
    withheld: tuple[str, ...] = ()

    def count(self, metric: Metric, value: float, *labels: str) -> None:
        self.counters[metric, labels] = self.counters.get((metric, labels), 0) + value

    def gauge(self, metric: Metric, value: float, *labels: str) -> None:
        self.gauges[metric, labels] = self.gauges.get((metric, labels), 0) + value

    def histogram(self, metric: Metric, value: Histogram, *labels: str) -> None:
        found = self.histograms.get((metric, labels))
        if found is None:
            found = self.histograms[metric, labels] = Histogram(value.bounds)
        found.add(value)


class Source(Protocol):
    """Something that counts: one coordinator of this process."""

    def read(self, into: Reading) -> None:
        """Add what there is now."""


class Meter:
    """All that a process counts. One per process: `METER`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sources: list[Source] = []
        self._ended = Reading()
        self._published: dict[str, int] = {}
        self._errors: dict[str, int] = {}

    def enter(self, source: Source) -> None:
        """Read a source from now on."""
        with self._lock:
            if source not in self._sources:
                self._sources.append(source)

    def leave(self, source: Source) -> None:
        """A source has ended: its counters stay, its gauges go. Harmless when repeated."""
        with self._lock:
            if source in self._sources:
                self._sources.remove(source)
                source.read(self._ended)
                self._ended.gauges.clear()

    def published(self, topic: str, count: int) -> None:
        with self._lock:
            self._published[topic] = self._published.get(topic, 0) + count

    def database_error(self, sqlstate: str | None) -> None:
        """Count an error that a caller of ours gets to see, or that a loop bears."""
        kind = error_class(sqlstate)
        with self._lock:
            self._errors[kind] = self._errors.get(kind, 0) + 1

    def read(self) -> Reading:
        """Read everything. Cost: some tens of microseconds for each partition held."""
        reading = Reading()
        with self._lock:
            for (metric, labels), value in self._ended.counters.items():
                reading.count(metric, value, *labels)
            for (metric, labels), histogram in self._ended.histograms.items():
                reading.histogram(metric, histogram, *labels)
            for topic, count in self._published.items():
                reading.count(metrics.PUBLISHED, count, topic)
            for kind in metrics.ERROR_CLASSES:
                reading.count(metrics.DATABASE_ERRORS, self._errors.get(kind, 0), kind)
            sources = list(self._sources)
        for source in sources:
            source.read(reading)
        return reading


def error_class(sqlstate: str | None) -> str:
    """Return the class that an error is counted under; see docs/metrics.md."""
    return "connection" if sqlstate is None else _CLASSES.get(sqlstate[:2], "other")


_CLASSES: Mapping[str, str] = {
    "08": "connection",
    # Deadlocks and serialization failures; locks that were not to be had in time.
    "40": "transaction",
    "55": "transaction",
    "53": "resources",
    # Cancelled, timed out, terminated, shut down.
    "57": "operator",
    # Raised by our functions.
    "KG": "protocol",
}

METER = Meter()
