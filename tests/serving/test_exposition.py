"""The text of /metrics as Prometheus' own parsers and the rules of `promtool check metrics` want it; the alerts' expressions."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as plain
from support.http import get
from support.shell import GROUP, TOPIC, publish, wait_until

from coordinator.observe import metrics
from coordinator.observe.grafana import dashboard_of
from coordinator.observe.rules import RULES

NAME = re.compile(r"coordinator(_[a-z0-9]+)+")
# A series for each of these is bounded by what operators make; for each member, key, offset or message it is not.
LABELS = {
    "topic",
    "group",
    "partition",
    "outcome",
    "reason",
    "kind",
    "table",
    "task",
    "loop",
    "source",
    "class",
    "le",
    "state",
}
UNITS = {"seconds", "bytes", "ratio", "celsius", "meters", "grams", "joules", "volts", "amperes"}
NO_UNITS = {
    "s",
    "ms",
    "us",
    "ns",
    "sec",
    "second",
    "millis",
    "milliseconds",
    "minutes",
    "hours",
    "days",
    "kb",
    "mb",
    "gb",
    "kib",
    "mib",
}
TYPES = {"counter", "gauge", "histogram", "summary", "info"}


@pytest.fixture
def scraped(app, serving):
    """Both forms, after every kind of outcome, with the gauges of the database."""
    publish(app, 6)
    with app.consumer(TOPIC, group=GROUP, ordering="none", retry=[0]) as consumer:
        (acked,), (nacked,), (rejected,) = (consumer.poll(1, 30) for _ in range(3))
        acked.ack()
        nacked.nack()
        rejected.reject("no")
        consumer.commit()
        port = serving()
        wait_until(lambda: "coordinator_group_lag{" in get(port, "/metrics").text, 30, "the gauges of the database")
        accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
        return get(port, "/metrics").text, get(port, "/metrics", headers=accept).text


def ours(families):
    return [family for family in families if family.name.startswith("coordinator")]


@pytest.mark.parametrize(("form", "parse"), [(0, plain), (1, open_metrics)], ids=["text", "openmetrics"])
def test_exposition__parsed_by_prometheus__keeps_its_rules(scraped, form, parse):
    families = list(parse(scraped[form]))
    assert [name for name, count in Counter(family.name for family in families).items() if count > 1] == []
    samples = [(sample.name, tuple(sorted(sample.labels.items()))) for family in families for sample in family.samples]
    assert [sample for sample, count in Counter(samples).items() if count > 1] == []
    found = ours(families)
    assert len(found) >= 15
    for family in found:
        assert NAME.fullmatch(family.name), family.name
        assert len(family.documentation) > 10, f"{family.name} has no help"
        assert family.type in TYPES, f"{family.name} is {family.type}"
        words = family.name.split("_")
        assert not NO_UNITS & set(words), f"{family.name}: base units, in full"
        assert not TYPES & set(words), f"{family.name} has its type in its name"
        for unit in UNITS & set(words):
            assert words[-1] in {unit, "total"} or words[-2:] == ["timestamp", unit], (
                f"{family.name}: the unit goes last"
            )
        for sample in family.samples:
            assert set(sample.labels) <= LABELS, sample
            # NaN is equal to nothing.
            assert sample.value == sample.value, sample
            if family.type == "counter":
                assert re.search(r"_(total|created)$", sample.name), sample
                assert sample.value >= 0
            else:
                assert not sample.name.endswith("_total"), sample
            if family.type == "gauge":
                assert not re.search(r"_(bucket|sum|count|info)$", sample.name), sample


def test_histograms__buckets__rise_to_the_count(scraped):
    histograms = [family for family in ours(plain(scraped[0])) if family.type == "histogram"]
    assert histograms
    for family in histograms:
        series: dict[tuple, list[tuple[float, float]]] = {}
        counts = {}
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if name != "le"}
            place = tuple(sorted(labels.items()))
            if sample.name.endswith("_bucket"):
                series.setdefault(place, []).append((float(sample.labels["le"]), sample.value))
            elif sample.name.endswith("_count"):
                counts[place] = sample.value
        for place, buckets in series.items():
            assert buckets == sorted(buckets), family.name
            assert [value for _, value in buckets] == sorted(value for _, value in buckets)
            assert buckets[-1] == (float("inf"), counts[place])


def test_list__of_all_metrics__keeps_the_rules_too():
    for metric in metrics.METRICS:
        assert NAME.fullmatch(metric.name)
        assert set(metric.labels) <= LABELS, metric
        assert (metric.kind == "counter") == metric.name.endswith("_total"), metric
        assert len(metric.text) > 10


# ---- PromQL: enough of it to find what Prometheus would refuse.

FUNCTIONS = {
    "rate",
    "increase",
    "irate",
    "delta",
    "deriv",
    "absent",
    "absent_over_time",
    "histogram_quantile",
    "time",
    "clamp_min",
    "clamp_max",
    "max_over_time",
    "min_over_time",
    "avg_over_time",
    "sum_over_time",
    "changes",
    "vector",
    "scalar",
    "abs",
    "label_replace",
    "timestamp",
    "round",
}
AGGREGATIONS = {"sum", "max", "min", "avg", "count", "topk", "bottomk", "quantile", "group"}
KEYWORDS = {"by", "without", "and", "or", "unless", "on", "ignoring", "group_left", "group_right", "bool", "offset"}
TOKEN = re.compile(
    r"""\s*(?:(?P<text>"(?:[^"\\]|\\.)*")|(?P<range>\[(?:\d+[smhdw]|\$__\w+)(?::(?:\d+[smhdw])?)?\])|(?P<number>\d+(?:\.\d+)?(?:e\d+)?)
    |(?P<name>[a-zA-Z_:$][\w:]*)|(?P<matcher>=~|!~|!=|==|>=|<=|=|>|<)|(?P<op>[-+*/%^])|(?P<bracket>[(){}])|(?P<comma>,))""",
    re.VERBOSE,
)


def tokens(expression: str) -> list[tuple[str, str]]:
    found, place = [], 0
    expression = expression.rstrip()
    while place < len(expression):
        match = TOKEN.match(expression, place)
        assert match, f"{expression!r}: not PromQL at {expression[place : place + 20]!r}"
        assert match.lastgroup is not None
        found.append((match.lastgroup, match[match.lastgroup]))
        place = match.end()
    return found


def check(expression: str) -> None:
    known = {metric.name for metric in metrics.METRICS} | {
        f"{metric.name}_{part}"
        for metric in metrics.METRICS
        if metric.kind == "histogram"
        for part in ("bucket", "sum", "count")
    }
    stack: list[str] = []
    found = tokens(expression)
    assert any(text in known for _, text in found), f"{expression!r} reads none of our metrics"
    for number, (kind, text) in enumerate(found):
        following = found[number + 1][1] if number + 1 < len(found) else ""
        if text in "({" and kind == "bracket":
            stack.append(text)
        elif kind == "bracket":
            assert stack, f"{expression!r}: unbalanced"
            assert stack.pop() + text in {"()", "{}"}, f"{expression!r}: unbalanced"
        elif kind == "name" and "{" in stack:
            assert re.fullmatch("=~|!~|!=|=", following), f"{expression!r}: {text} is matched with nothing"
        elif kind == "name" and following == "(" and text not in KEYWORDS:
            assert text in FUNCTIONS | AGGREGATIONS, f"{expression!r}: no function {text}"
        elif kind == "name" and text.startswith("coordinator"):
            assert text in known, f"{expression!r}: no metric {text}"
        elif kind == "range":
            assert found[number - 1][0] == "name" or found[number - 1][1] in "})", f"{expression!r}: a range of nothing"
    assert not stack, f"{expression!r}: {stack} is not closed"
    # Of counters, and of parts of histograms, only the rise is of use.
    for number, (_, text) in enumerate(found):
        if re.fullmatch(r"coordinator\w+_(total|bucket|sum|count)", text):
            rest = "".join(word for _, word in found[number + 1 :])
            assert re.match(r"(\{[^}]*\})?\[", rest), f"{expression!r}: {text} without a range"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_alert__expression__is_promql_on_metrics_that_exist(rule):
    check(rule.expression)


def test_panels__expressions__are_promql_on_metrics_that_exist():
    expressions = re.findall(r'"expr": ("(?:[^"\\]|\\.)*")', json.dumps(dashboard_of()))
    assert len(expressions) > 10
    for expression in expressions:
        check(json.loads(expression))


@pytest.mark.parametrize(
    "wrong",
    [
        "sum(coordinator_group_lag",
        "sum(coordinator_group_lag))",
        "coordinator_group_lags > 1",
        "total(coordinator_group_lag)",
        "rate(coordinator_deliveries_total)",
        "sum(coordinator_group_lag{group}) > 1",
        "coordinator_group_lag > > [5m",
        "up == 0",
    ],
)
def test_check__what_prometheus_would_refuse__is_found(wrong):
    with pytest.raises(AssertionError):
        check(wrong)
