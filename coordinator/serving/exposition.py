"""What was counted, in the forms that others read: Prometheus' text, and JSON."""

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from coordinator.observe.meter import Histogram, Reading
from coordinator.observe.metrics import METRICS, Metric

_FAMILIES: dict[str, Any] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


class _Others(Collector):
    """The metrics of the default registry: the process, and what the application counts itself."""

    def describe(self) -> Iterable[Any]:
        return ()

    def collect(self) -> Iterator[Any]:
        yield from REGISTRY.collect()


class Readings(Collector):
    """A collector for prometheus_client; `read` is called at each scrape. For a registry of your own, too."""

    def __init__(self, read: Callable[[], Reading]) -> None:
        self._read = read

    def describe(self) -> Iterable[Any]:
        """Say nothing: registering must not read."""
        return ()

    def collect(self) -> Iterator[Any]:
        by_metric: dict[Metric, list[tuple[tuple[str, ...], float | Histogram]]] = {}
        reading = self._read()
        for values in (reading.counters, reading.gauges, reading.histograms):
            for (metric, labels), value in values.items():
                by_metric.setdefault(metric, []).append((labels, value))
        for metric in METRICS:
            if metric not in by_metric:
                continue
            family = _FAMILIES[metric.kind](metric.name, metric.text, labels=metric.labels)
            for labels, value in sorted(by_metric[metric], key=_labels):
                if isinstance(value, Histogram):
                    family.add_metric(labels, buckets=buckets_of(value), sum_value=value.total)
                else:
                    family.add_metric(labels, value)
            yield family


def text(read: Callable[[], Reading], accept: str = "", *, own: bool = True) -> tuple[bytes, str]:
    """Return what a scrape gets, with its content type: our metrics, and with `own` those of the process's own registry."""
    encode, content_type = choose_encoder(accept)
    ours = CollectorRegistry()
    ours.register(Readings(read))
    if own:
        ours.register(_Others())
    return encode(ours), content_type


def objects(reading: Reading) -> dict[str, Any]:
    """Return all metrics as JSON holds them: by name, each with its kind, its text and its samples."""
    found: dict[str, dict[str, Any]] = {}
    for values in (reading.counters, reading.gauges, reading.histograms):
        for (metric, labels), value in values.items():
            entry = found.setdefault(metric.name, {"kind": metric.kind, "help": metric.text, "samples": []})
            sample: dict[str, Any] = {"labels": dict(zip(metric.labels, labels, strict=True))}
            if isinstance(value, Histogram):
                sample |= {"buckets": dict(buckets_of(value)), "sum": value.total, "count": sum(value.counts)}
            else:
                sample["value"] = value
            entry["samples"].append(sample)
    return {metric.name: found[metric.name] for metric in METRICS if metric.name in found}


def buckets_of(histogram: Histogram) -> list[tuple[str, int]]:
    """Return cumulative counts by upper bound, as Prometheus wants them."""
    names = [*map(str, histogram.bounds), "+Inf"]
    return list(zip(names, accumulate(histogram.counts), strict=True))


def _labels(sample: tuple[tuple[str, ...], float | Histogram]) -> tuple[str, ...]:
    return sample[0]
