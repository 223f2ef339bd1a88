"""A dashboard for Grafana, to be imported; a test looks for every metric that is named here."""

from typing import Any, Final, NamedTuple

_WIDTH = 12
_HEIGHT = 8
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


class Panel(NamedTuple):
    """expressions: pairs of PromQL and legend."""

    title: str
    unit: str
    expressions: tuple[tuple[str, str], ...]


def _quantiles(buckets: str) -> tuple[tuple[str, str], ...]:
    rate = f'rate({buckets}{{group=~"$group"}}[$__rate_interval])'
    return tuple(
        (f"histogram_quantile({quantile}, sum by (le, group) ({rate}))", f"{{{{group}}}} p{int(100 * quantile)}")
        for quantile in (0.5, 0.99)
    )


def _of_one(metric: str) -> str:
    """A gauge of the database, by group: whichever process exports it."""
    return f'max by (group) (sum by (instance, group) ({metric}{{group=~"$group"}}))'


PANELS: Final = (
    Panel(
        "Lag",
        "short",
        (
            (
                'max by (group, topic) (sum by (instance, group, topic) (coordinator_group_lag{group=~"$group"}))',
                "{{group}} {{topic}}",
            ),
        ),
    ),
    Panel(
        "Age of the oldest unsettled message",
        "s",
        (
            (
                'max by (group, topic) (coordinator_group_oldest_unacked_age_seconds{group=~"$group"})',
                "{{group}} {{topic}}",
            ),
        ),
    ),
    Panel(
        "Published",
        "ops",
        (
            (
                "max by (topic) (sum by (instance, topic) (rate(coordinator_topic_log_end_offset[$__rate_interval])))",
                "{{topic}}",
            ),
        ),
    ),
    Panel(
        "Deliveries by outcome",
        "ops",
        (
            (
                'sum by (group, outcome) (rate(coordinator_deliveries_total{group=~"$group"}[$__rate_interval]))',
                "{{group}} {{outcome}}",
            ),
        ),
    ),
    Panel(
        "Handler duration",
        "s",
        _quantiles("coordinator_handler_duration_seconds_bucket"),
    ),
    Panel(
        "Publish to hand-over",
        "s",
        _quantiles("coordinator_delivery_latency_seconds_bucket"),
    ),
    Panel(
        "In flight, ready, parked",
        "short",
        (
            ('sum by (group) (coordinator_in_flight_messages{group=~"$group"})', "{{group}} in flight"),
            ("sum(coordinator_in_flight_limit_messages)", "limit of in flight"),
            ('sum by (group) (coordinator_ready_messages{group=~"$group"})', "{{group}} ready"),
            (
                'max by (group) (sum by (instance, group) (coordinator_group_parked_messages{group=~"$group"}))',
                "{{group}} parked",
            ),
        ),
    ),
    Panel(
        "Redeliveries and dead letters",
        "ops",
        (
            (
                'sum by (group, reason) (rate(coordinator_redeliveries_total{group=~"$group"}[$__rate_interval]))',
                "{{group}} again: {{reason}}",
            ),
            (
                'sum by (group, reason) (rate(coordinator_dead_letters_total{group=~"$group"}[$__rate_interval]))',
                "{{group}} dead: {{reason}}",
            ),
        ),
    ),
    Panel(
        "Members, partitions without an owner, blocked keys",
        "short",
        (
            ('max by (group) (coordinator_group_members{group=~"$group"})', "{{group}} members"),
            (
                'max by (group) (sum by (instance, group) (coordinator_group_unowned_partitions{group=~"$group"}))',
                "{{group}} unowned",
            ),
            ('sum by (group) (coordinator_blocked_keys{group=~"$group"})', "{{group}} blocked keys"),
        ),
    ),
    Panel(
        "Rebalances and lost leases",
        "short",
        (
            ('sum by (group) (increase(coordinator_rebalances_total{group=~"$group"}[5m]))', "{{group}} rebalances"),
            ("sum(increase(coordinator_lease_losses_total[5m]))", "leases lost"),
            ("sum(increase(coordinator_stale_acks_total[5m]))", "stale acks"),
        ),
    ),
    Panel(
        "Exchanges",
        "s",
        (
            (
                "histogram_quantile(0.99, sum by (le) (rate(coordinator_exchange_duration_seconds_bucket[$__rate_interval])))",
                "p99",
            ),
            (
                "histogram_quantile(0.5, sum by (le) (rate(coordinator_exchange_duration_seconds_bucket[$__rate_interval])))",
                "p50",
            ),
        ),
    ),
    Panel(
        "Wake-ups and errors of the database",
        "ops",
        (
            ("sum by (source) (rate(coordinator_wakeups_total[$__rate_interval]))", "woken by {{source}}"),
            ("sum by (class) (rate(coordinator_database_errors_total[$__rate_interval]))", "error: {{class}}"),
        ),
    ),
    Panel(
        "Disk",
        "bytes",
        (("max by (topic) (coordinator_topic_bytes)", "{{topic}}"),),
    ),
    Panel(
        "Dead rows",
        "short",
        (("max by (table) (coordinator_table_dead_tuples)", "{{table}}"),),
    ),
    Panel(
        "Oldest snapshot, time since maintenance",
        "s",
        (
            ("max(coordinator_oldest_snapshot_age_seconds)", "oldest snapshot"),
            ("time() - max by (task) (coordinator_maintenance_last_success_timestamp_seconds)", "since {{task}}"),
        ),
    ),
    Panel(
        "Clock skew, lease left",
        "s",
        (
            ("coordinator_clock_skew_seconds", "{{instance}} skew"),
            ("coordinator_lease_left_seconds", "{{instance}} lease left"),
        ),
    ),
)


def dashboard_of() -> dict[str, Any]:
    """Return what Grafana imports: two panels a row, variables for the data source and the groups."""
    return {
        "title": "coordinator",
        "uid": "coordinator",
        "tags": ["coordinator", "postgresql"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
                {
                    "name": "group",
                    "type": "query",
                    "label": "Group",
                    "datasource": _SOURCE,
                    "query": {"query": "label_values(coordinator_group_lag, group)", "refId": "group"},
                    "refresh": 2,
                    "multi": True,
                    "includeAll": True,
                    "allValue": ".*",
                    "current": {"text": "All", "value": "$__all"},
                },
            ]
        },
        "panels": [_panel(place, panel) for place, panel in enumerate(PANELS)],
    }


def _panel(place: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(place, 2)
    return {
        "id": place + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": _SOURCE,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0 if "skew" not in panel.title else None},
            "overrides": [],
        },
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + index), "expr": expression, "legendFormat": legend, "datasource": _SOURCE}
            for index, (expression, legend) in enumerate(panel.expressions)
        ],
    }
