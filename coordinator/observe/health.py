"""What is wrong with a process or a group, each with its reason; by code, so that programs can tell."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.protocol.check import no_group
from coordinator.protocol.observe import GroupGauge, GroupTotals, group_gauges, group_totals, in_flight
from coordinator.protocol.statement import Flow, call


@dataclass(frozen=True, slots=True)
class Finding:
    """One reason to be red.

    Attributes:
        code: loop_dead, loop_stuck, listener_deaf, lease_lost, database_away, deleted, lag, age, in_flight, dead_letters,
            unowned, no_members, maintenance.
        reason: For people; names what was found, and the limit.
        live: A restart of the process would help; else it is alive, and not ready.
    """

    code: str
    reason: str
    live: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """What groups may come to before that is a finding; None: whatever it is.

    Attributes:
        max_lag, max_in_flight, max_dead_letters: Of a group, all its partitions together.
        max_age_s: Of its oldest message that is not settled.
    """

    max_lag: int | None = None
    max_age_s: float | None = None
    max_in_flight: int | None = None
    max_dead_letters: int | None = None


def examine(limits: Limits, group: str | None) -> Flow[list[Finding]]:
    """Look at all groups, or one, and return what is wrong. Raises: NotFoundError, no such group."""
    gauges = yield from call(group_gauges())
    totals = yield from call(group_totals())
    windows = yield from call(in_flight())
    if group is not None and group not in (known := [total.group for total in totals]):
        raise no_group(group, known)
    return beyond(limits, gauges, totals, windows, group)


def beyond(
    limits: Limits,
    gauges: Sequence[GroupGauge],
    totals: Sequence[GroupTotals],
    windows: Mapping[str, int],
    only: str | None = None,
) -> list[Finding]:
    """Compare groups, or one of them, with the limits; a group that has members and partitions of nobody is ill, too."""
    found: list[Finding] = []
    for total in totals:
        group = total.group
        if only is not None and group != only:
            continue
        mine = [gauge for gauge in gauges if gauge.group == group]
        for code, what, value, limit in (
            ("lag", "messages not settled", sum(gauge.lag for gauge in mine), limits.max_lag),
            (
                "age",
                "s is the age of its oldest message",
                max((g.oldest_unacked_s for g in mine), default=0.0),
                limits.max_age_s,
            ),
            ("in_flight", "messages in windows", windows.get(group, 0), limits.max_in_flight),
            ("dead_letters", "dead letters", total.dead_letters, limits.max_dead_letters),
        ):
            if limit is not None and value > limit:
                found.append(Finding(code, f"group {group}: {value:.0f} {what}, limit {limit:g}"))
        unowned = [f"{gauge.topic}/{gauge.partition}" for gauge in mine if not gauge.owned]
        if unowned and total.members:
            found.append(
                Finding("unowned", f"group {group}: nobody holds {', '.join(unowned[:5])}, {len(unowned)} in all")
            )
        if not total.members and any(gauge.lag for gauge in mine):
            found.append(Finding("no_members", f"group {group}: has messages to settle and no members"))
    return found


def body(findings: list[Finding]) -> dict[str, Any]:
    """Return what health says as JSON holds it."""
    return {
        "status": "red" if findings else "green",
        "reasons": [{"code": finding.code, "reason": finding.reason} for finding in findings],
    }
