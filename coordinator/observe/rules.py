"""Alert rules for Prometheus; each has its runbook, and a test looks for every metric that is named here."""

import json
import re
from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class Rule:
    """One alert. `runbook` is a heading of docs/runbooks.md, which is named as the alert."""

    name: str
    expression: str
    for_minutes: int
    severity: Literal["page", "ticket"]
    summary: str

    @property
    def runbook(self) -> str:
        """The anchor of its heading, as GitHub and most others make it."""
        return re.sub(r"[^a-z0-9-]", "", self.name.lower())


# Gauges of the database come from one process at a time; max by () makes the hand-over between two of them invisible.
RULES: Final = (
    Rule(
        "CoordinatorLagGrows",
        "max by (group, topic) (sum by (instance, group, topic) (coordinator_group_lag)) > 10000 and "
        "max by (group, topic) (deriv(sum by (instance, group, topic) (coordinator_group_lag)[15m:1m])) > 0",
        15,
        "ticket",
        "Group {{ $labels.group }} falls behind on {{ $labels.topic }}: {{ $value }} messages",
    ),
    Rule(
        "CoordinatorMessagesOld",
        "max by (group, topic) (coordinator_group_oldest_unacked_age_seconds) > 900",
        10,
        "page",
        "Group {{ $labels.group }} has a message of {{ $labels.topic }} that has waited for {{ $value | humanizeDuration }}",
    ),
    Rule(
        "CoordinatorGroupWithoutMembers",
        "max by (group) (coordinator_group_members) == 0 and on (group) "
        "max by (group) (sum by (instance, group) (coordinator_group_lag)) > 0",
        10,
        "page",
        "Nobody reads for group {{ $labels.group }}, and there are messages for it",
    ),
    Rule(
        "CoordinatorPartitionsUnowned",
        "max by (group, topic) (coordinator_group_unowned_partitions) > 0 and on (group) "
        "max by (group) (coordinator_group_members) > 0",
        2,
        "page",
        "{{ $value }} partitions of {{ $labels.topic }} have no owner in group {{ $labels.group }}, which has members",
    ),
    Rule(
        "CoordinatorHandlerStuck",
        "coordinator_in_flight_messages > 0 and on (instance, topic, group) "
        "rate(coordinator_handler_duration_seconds_count[15m]) == 0",
        15,
        "page",
        "A handler of group {{ $labels.group }} on {{ $labels.instance }} has not returned for 15 minutes",
    ),
    Rule(
        "CoordinatorDeadLettersGrow",
        "max by (group) (delta(coordinator_group_dead_letters[15m])) > 10",
        0,
        "ticket",
        "Group {{ $labels.group }} gave up {{ $value }} messages within 15 minutes",
    ),
    Rule(
        "CoordinatorRetriesHigh",
        'sum by (group, topic) (rate(coordinator_deliveries_total{outcome="retried"}[10m])) > '
        "0.1 * sum by (group, topic) (rate(coordinator_deliveries_total[10m]))",
        10,
        "ticket",
        "More than a tenth of the deliveries of {{ $labels.topic }} to group {{ $labels.group }} fail",
    ),
    Rule(
        "CoordinatorKeysBlocked",
        "sum by (group, topic) (coordinator_blocked_keys) > 0",
        30,
        "ticket",
        "{{ $value }} keys of {{ $labels.topic }} have been blocked in group {{ $labels.group }} for 30 minutes",
    ),
    Rule(
        "CoordinatorParkedFull",
        "max by (group, topic) (coordinator_group_parked_messages) > 8000",
        5,
        "ticket",
        "{{ $value }} messages of {{ $labels.topic }} wait for retries in group {{ $labels.group }}; at the bound it stops",
    ),
    Rule(
        "CoordinatorLeaseLost",
        "increase(coordinator_lease_losses_total[15m]) > 0",
        0,
        "ticket",
        "{{ $labels.instance }} was declared dead while it was alive",
    ),
    Rule(
        "CoordinatorListenerDeaf",
        "coordinator_listener_connected == 0",
        5,
        "ticket",
        "{{ $labels.instance }} hears no notifications, and finds messages by polling alone",
    ),
    Rule(
        "CoordinatorRebalancesOften",
        "sum by (group) (increase(coordinator_rebalances_total[15m])) > 30",
        0,
        "ticket",
        "Partitions of group {{ $labels.group }} have moved {{ $value }} times within 15 minutes",
    ),
    Rule(
        "CoordinatorDatabaseErrors",
        "sum by (class) (rate(coordinator_database_errors_total[5m])) > 0.2",
        5,
        "ticket",
        "Errors of the database, class {{ $labels.class }}: {{ $value }} a second",
    ),
    Rule(
        "CoordinatorClockSkew",
        "abs(coordinator_clock_skew_seconds) > 5",
        10,
        "ticket",
        "The clock of {{ $labels.instance }} and the server's are {{ $value }} seconds apart",
    ),
    Rule(
        "CoordinatorSnapshotOld",
        "max(coordinator_oldest_snapshot_age_seconds) > 3600",
        5,
        "ticket",
        "A transaction has been open for {{ $value | humanizeDuration }}, and vacuum can remove nothing since",
    ),
    Rule(
        "CoordinatorDeadRows",
        "max by (table) (coordinator_table_dead_tuples) > 1000000",
        30,
        "ticket",
        "Table {{ $labels.table }} has {{ $value }} dead rows",
    ),
    Rule(
        "CoordinatorMaintenanceMissing",
        "time() - max by (task) (coordinator_maintenance_last_success_timestamp_seconds) > 3600",
        0,
        "ticket",
        "Maintenance ({{ $labels.task }}) last went well {{ $value | humanizeDuration }} ago",
    ),
    Rule(
        "CoordinatorMessagesSkipped",
        "max by (group) (increase(coordinator_group_skipped_offsets_total[1h])) > 0",
        0,
        "page",
        "Retention has made group {{ $labels.group }} pass {{ $value }} offsets that it had not settled",
    ),
    Rule(
        "CoordinatorGaugesMissing",
        "absent(coordinator_database_gauges_exporter == 1)",
        5,
        "ticket",
        "No process exports the gauges of the database: alerts about groups are blind",
    ),
)


def rules_text(runbooks: str) -> str:
    """Return the rules as YAML; its strings are written as JSON writes them, which YAML reads."""
    lines = ["groups:", "  - name: coordinator", "    rules:"]
    for rule in RULES:
        lines += [
            f"      - alert: {rule.name}",
            f"        expr: {json.dumps(rule.expression)}",
            f"        for: {rule.for_minutes}m",
            "        labels:",
            f"          severity: {rule.severity}",
            "        annotations:",
            f"          summary: {json.dumps(rule.summary)}",
            f"          runbook_url: {json.dumps(f'{runbooks}#{rule.runbook}')}",
        ]
    return "\n".join(lines) + "\n"
