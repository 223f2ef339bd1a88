"""Functions of sql/functions/admin and the views that tools read, as data."""

from typing import Any, NamedTuple

from coordinator.model import CoordinatorInfo, GroupInfo, GroupMember, GroupOffset, HandOver
from coordinator.protocol.check import maybe, text
from coordinator.protocol.statement import Statement


def protocol_version() -> Statement[int]:
    """What clients compare when they connect."""
    return Statement("protocol_version", "select coordinator.protocol_version()", (), lambda rows: int(rows[0][0]))


def clock() -> Statement[float]:
    """The server's clock, in seconds since 1970."""
    return Statement(
        "now_", "select extract(epoch from coordinator.now_())::double precision", (), lambda rows: float(rows[0][0])
    )


def history() -> Statement[str | None]:
    """Which history of the database a connection sees; another one may lack commits (R4). None: it can't be told."""
    return Statement("history", "select coordinator.history()", (), lambda rows: rows[0][0])


def notify(channel: str) -> Statement[None]:
    """Ring on a channel, whose name is the schema's by now."""
    return Statement("notify", "select pg_catalog.pg_notify(%s, '')", (channel,), lambda _rows: None)


def group_offsets(group: str) -> Statement[list[GroupOffset]]:
    """Where a group stands, by topic and partition; empty for an unknown group."""
    return Statement(
        "group_offsets",
        'select o."group", o.topic, o.partition, o.current_offset, o.log_start_offset, o.log_end_offset, o.lag, '
        "o.window_open, o.parked, o.start_offset, o.epoch, o.progress_at, o.member_id, o.client_id, o.host, o.member_state, "
        'o.paused from coordinator.offsets o where o."group" = %s order by o.topic, o.partition',
        (text("group", group),),
        lambda rows: [GroupOffset(*row) for row in rows],
    )


def group_members(group: str | None) -> Statement[list[GroupMember]]:
    """Who takes part in a group, or in any."""
    return Statement(
        "group_members",
        'select m."group", m.member_id, m.client_id, m.host, m.pid, m.state, m.started_at, m.joined_at, m.lease_until, '
        "m.lease_left_s, m.topics, m.partitions from coordinator.group_members m "
        'where %s::text is null or m."group" = %s::text order by m."group", m.joined_at',
        (maybe(text, "group", group), group),
        lambda rows: [_member(list(row)) for row in rows],
    )


def list_groups(group: str | None = None) -> Statement[list[GroupInfo]]:
    """All groups by name, or the one that is named, if it is there."""
    return Statement(
        "list_groups",
        "select g.name, g.topics, g.members, g.lag, g.created_at, g.unused_since, g.expire_s, g.on_expiry, "
        "g.max_dead_letter_age_s from coordinator.group_list g where %s::text is null or g.name = %s::text order by g.name",
        (maybe(text, "group", group), group),
        lambda rows: [GroupInfo(row[0], tuple(row[1]), *row[2:]) for row in rows],
    )


def list_coordinators(*, dead: bool) -> Statement[list[CoordinatorInfo]]:
    """Consumer processes, the oldest first; with those that died within the last day, or without."""
    return Statement(
        "list_coordinators",
        "select c.member_id, c.client_id, c.static_id, c.host, c.pid, c.state, c.session, c.started_at, c.lease_until, "
        "c.lease_left_s, c.died_at, coalesce(c.groups, '{}'), c.partitions from coordinator.coordinator_list c "
        "where %s or c.state <> 'dead' order by c.started_at, c.member_id",
        (dead,),
        lambda rows: [_coordinator(list(row)) for row in rows],
    )


def hand_overs(group: str | None) -> Statement[list[HandOver]]:
    """Partitions that are not where the plan of a group, or of any, wants them."""
    return Statement(
        "hand_overs",
        'select h."group", h.topic, h.partition, h.member_id, h.client_id, h.target_member_id, h.target_client_id, h.waiting_s '
        'from coordinator.hand_overs h where %s::text is null or h."group" = %s::text '
        'order by h."group", h.topic, h.partition',
        (maybe(text, "group", group), group),
        lambda rows: [HandOver(*row) for row in rows],
    )


def _coordinator(values: list[Any]) -> CoordinatorInfo:
    values[11] = tuple(values[11])
    return CoordinatorInfo(*values)


def _member(values: list[Any]) -> GroupMember:
    values[10] = tuple(values[10] or ())
    return GroupMember(*values)


class BehindSequence(NamedTuple):
    """A sequence that is behind its table, or ahead of the last segment; `value` is null where it was never used."""

    sequence: str
    value: int | None
    wanted: int


def repair_sequences(*, execute: bool) -> Statement[list[BehindSequence]]:
    """Find them, and set them if told to."""
    return Statement(
        "repair_sequences",
        "select r.sequence, r.value, r.wanted from coordinator.repair_sequences(%s) r",
        (execute,),
        lambda rows: [BehindSequence(*row) for row in rows],
    )
