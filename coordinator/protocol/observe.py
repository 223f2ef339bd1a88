"""The functions of sql/functions/observe as data."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from coordinator.protocol.statement import Statement


class GroupGauge(NamedTuple):
    """Where a group stands in one partition; seconds are ages by the server's clock."""

    group: str
    topic: str
    partition: int
    lag: int
    parked: int
    owned: bool
    lag_s: float
    oldest_unacked_s: float


class GroupTotals(NamedTuple):
    """skipped: offsets that retention has made the group pass."""

    group: str
    members: int
    dead_letters: int
    skipped: int


class ServerGauges(NamedTuple):
    """What the statistics and the catalogue say; times are seconds since 1970.

    withheld: Views that the server keeps from the owner of the schema: what they would tell is missing, or None.
    """

    dead_tuples: Mapping[str, int]
    oldest_snapshot_s: float | None
    maintained_at: Mapping[str, float]
    segments: Mapping[str, int]
    withheld: Sequence[str]


def take_export_turn(exporter: UUID, hold_s: float) -> Statement[bool]:
    """Whether this process exports the gauges of the database from now on; ask again within hold_s."""
    return Statement(
        "take_export_turn",
        "select coordinator.take_export_turn(%s, %s)",
        (exporter, hold_s),
        lambda rows: bool(rows[0][0]),
    )


def end_export_turn(exporter: UUID) -> Statement[None]:
    """Leave the turn to others."""
    return Statement("end_export_turn", "select coordinator.end_export_turn(%s)", (exporter,), lambda _rows: None)


def group_gauges() -> Statement[list[GroupGauge]]:
    """Where all groups stand."""
    return Statement(
        "group_gauges",
        'select g."group", g.topic, g.partition, g.lag, g.parked, g.owned, g.lag_s, g.oldest_unacked_s '
        "from coordinator.group_gauges() g",
        (),
        lambda rows: [GroupGauge(*row) for row in rows],
    )


def group_totals() -> Statement[list[GroupTotals]]:
    """Members and dead letters of all groups."""
    return Statement(
        "group_totals",
        'select t."group", t.members, t.dead_letters, t.skipped from coordinator.group_totals() t',
        (),
        lambda rows: [GroupTotals(*row) for row in rows],
    )


def in_flight() -> Statement[dict[str, int]]:
    """What each group may have in flight: the open part of its windows, an upper bound."""
    return Statement(
        "in_flight",
        'select o."group", sum(o.window_open)::bigint from coordinator.offsets o group by o."group"',
        (),
        lambda rows: {row[0]: int(row[1]) for row in rows},
    )


def server_gauges() -> Statement[ServerGauges]:
    """Dead rows, the oldest snapshot, maintenance, segments."""
    return Statement(
        "server_gauges",
        "select s.dead_tuples, s.oldest_snapshot_s, s.maintained_at, s.segments, s.withheld from coordinator.server_gauges() s",
        (),
        lambda rows: ServerGauges(*rows[0]),
    )
