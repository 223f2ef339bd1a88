"""The functions of sql/functions/groups as data."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from coordinator.core.ranges import from_text
from coordinator.model import (
    Blocker,
    Claim,
    ClaimState,
    Crash,
    GroupState,
    Joined,
    JoinedTopic,
    PartitionKey,
    StuckClaim,
)
from coordinator.protocol.statement import Row, Statement
from coordinator.protocol.text import array

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime


def register(
    coordinator: UUID,
    client_id: str,
    host: str,
    pid: int,
    lease_s: float,
    static_id: str | None = None,
    grace_s: float = 0.0,
    groups: Sequence[str] = (),
) -> Statement[None]:
    """Enter one process; its lease runs from now on. Who has its static id is replaced, and leaves it what is of these groups."""
    return Statement(
        "register",
        "select coordinator.register(%s, %s, %s, %s, %s, %s, %s, %s)",
        (coordinator, client_id, host, pid, lease_s, static_id, grace_s, list(groups)),
        lambda _rows: None,
    )


def heartbeat(coordinator: UUID, *, draining: bool = False) -> Statement[None]:
    """Renew the lease."""
    return Statement("heartbeat", "select coordinator.heartbeat(%s, %s)", (coordinator, draining), lambda _rows: None)


def hold_session(coordinator: UUID, client_pid: int) -> Statement[bool]:
    """Announce that this session lives as long as the process; False behind a pooler."""
    return Statement(
        "hold_session",
        "select coordinator.hold_session(%s, %s)",
        (coordinator, client_pid),
        lambda rows: bool(rows[0][0]),
    )


def lost_sessions() -> Statement[list[tuple[UUID, int]]]:
    """Living coordinators without the session that they announced, and its pid."""
    return Statement(
        "lost_sessions",
        "select l.coordinator, l.session_pid from coordinator.lost_sessions() l",
        (),
        lambda rows: [(row[0], row[1]) for row in rows],
    )


class Dead(NamedTuple):
    """A process that was declared dead, and the groups that it was in."""

    member_id: UUID
    client_id: str
    host: str
    pid: int
    groups: list[str]


def facts_of(dead: Dead) -> dict[str, object]:
    """Return the log fields that name it."""
    groups = ",".join(dead.groups)
    return {
        "member": str(dead.member_id),
        "groups": groups,
        "client_id": dead.client_id,
        "host": dead.host,
        "pid": dead.pid,
    }


def reap(observed_s: float, lost: Mapping[UUID, int] | None = None) -> Statement[list[Dead]]:
    """Declare dead whose lease ran out, or whose session was lost for long enough.

    Args:
        observed_s: How long the caller's connection has been up; nobody is judged before that is a lease.
        lost: Coordinators with the pids of their lost sessions.
    """
    text = json.dumps({str(coordinator): pid for coordinator, pid in (lost or {}).items()})
    return Statement(
        "reap",
        "select r.member_id, r.client_id, r.host, r.pid, r.in_groups from coordinator.reap(%s, %s::jsonb) r",
        (observed_s, text),
        lambda rows: [Dead(*row) for row in rows],
    )


def join_group(
    coordinator: UUID | None, group: str, topics: Sequence[str], start: str, start_time: datetime | None
) -> Statement[Joined]:
    """Become a member; make the group and its claims where they are missing."""
    return Statement(
        "join_group",
        "select j.group_id, j.topics from coordinator.join_group(%s, %s, %s, %s, %s) j",
        (coordinator, group, list(topics), start, start_time),
        _joined,
    )


def rejoin_group(coordinator: UUID, group: str, group_id: int, topics: Mapping[str, int]) -> Statement[Joined]:
    """Become a member again, of what is still there: the group and its topics, by name and number; nothing is made."""
    return Statement(
        "rejoin_group",
        "select j.group_id, j.topics from coordinator.rejoin_group(%s, %s, %s, %s, %s) j",
        (coordinator, group, group_id, list(topics), list(topics.values())),
        _joined,
    )


def _joined(rows: Sequence[Row]) -> Joined:
    topics = rows[0][1] or ()
    return Joined(
        rows[0][0],
        tuple(JoinedTopic(topic["topic_id"], topic["name"], topic["partitions"], topic["channel"]) for topic in topics),
    )


def leave(coordinator: UUID, *, keep: bool = False) -> Statement[None]:
    """Take a coordinator out of its groups; `keep`: its place waits for its static id, for the grace."""
    return Statement("leave", "select coordinator.leave(%s, %s)", (coordinator, keep), lambda _rows: None)


def evict(coordinator: UUID) -> Statement[None]:
    """End a coordinator's rights now; nothing is charged."""
    return Statement("evict", "select coordinator.evict(%s)", (coordinator,), lambda _rows: None)


def drain(coordinator: UUID, *, on: bool) -> Statement[None]:
    """Take the work away from a coordinator, or give it some again."""
    return Statement("drain", "select coordinator.drain(%s, %s)", (coordinator, on), lambda _rows: None)


def give_up(coordinator: UUID) -> Statement[None]:
    """Release whatever it owns, and leave: its process has lost all memory of it."""
    return Statement("give_up", "select coordinator.give_up(%s)", (coordinator,), lambda _rows: None)


def group_state(group_ids: Sequence[int]) -> Statement[list[GroupState]]:
    """What plans are made from."""
    return Statement(
        "group_state",
        "select s.group_id, s.version, s.planned_version, s.members, s.claims, s.joined_s, s.unplanned_s "
        "from coordinator.group_state(%s) s",
        (array(group_ids),),
        lambda rows: [_state(row) for row in rows],
    )


def store_plan(group_id: int, version: int, owners: Sequence[tuple[tuple[int, int], UUID]]) -> Statement[bool]:
    """Store who should own what; False if the membership has moved on, or somebody else was first."""
    return Statement(
        "store_plan",
        "select coordinator.store_plan(%s, %s, %s, %s, %s)",
        (
            group_id,
            version,
            array(partition[0] for partition, _ in owners),
            array(partition[1] for partition, _ in owners),
            array(owner for _, owner in owners),
        ),
        lambda rows: bool(rows[0][0]),
    )


def claim(
    coordinator: UUID, wanted: Sequence[PartitionKey], hand_over_s: float | None = None
) -> Statement[list[Claim]]:
    """Take those of the wanted partitions that nobody alive owns, or that have not been handed over for so long."""
    return Statement(
        "claim",
        'select c.group_id, c.topic_id, c."partition", c.epoch, c.seq, c.committed, c.done, c.takeover, c.crashes, c.parked, '
        "c.forced from coordinator.claim(%s, %s, %s, %s, %s) c",
        (
            coordinator,
            array(key.group_id for key in wanted),
            array(key.topic_id for key in wanted),
            array(key.partition for key in wanted),
            hand_over_s,
        ),
        lambda rows: [
            Claim(
                PartitionKey(row[0], row[1], row[2]),
                row[3],
                row[4],
                row[5],
                from_text(row[6]),
                row[7],
                tuple(Crash(from_text(offsets), alone, float(age_s)) for offsets, alone, age_s in row[8] or ()),
                tuple((offset, key) for offset, key in row[9] or ()),
                bool(row[10]),
            )
            for row in rows
        ],
    )


def stuck_claims(group_ids: Sequence[int] | None) -> Statement[list[StuckClaim]]:
    """Claims that anybody could take, were their rows not held; of these groups, or of all."""
    return Statement(
        "stuck_claims",
        'select s.group_id, s.topic_id, s.partition, s.owner, s."group", s.topic from coordinator.stuck_claims(%s::int[]) s',
        (None if group_ids is None else array(group_ids),),
        lambda rows: [StuckClaim(PartitionKey(*row[:3]), *row[3:]) for row in rows],
    )


def blockers_of(pid: int) -> Statement[list[Blocker]]:
    """For whom a session waits now."""
    return Statement(
        "blockers_of",
        "select b.pid, b.prepared, b.role, b.application_name, host(b.client_addr), b.state, b.transaction_age_s "
        "from coordinator.blockers_of(%s) b",
        (pid,),
        lambda rows: [Blocker(*row) for row in rows],
    )


def end_blockers(pid: int) -> Statement[list[int]]:
    """End those of our own role for whom a session waits; returns their pids."""
    return Statement("end_blockers", "select coordinator.end_blockers(%s)", (pid,), lambda rows: list(rows[0][0]))


# Sent without waiting for its answer; see coordinator.db.blockers.
PROBE = "select coordinator.probe_claim($1::int, $2::int, $3::int)"


def _state(row: Row) -> GroupState:
    group_id, version, planned_version, members, claims, joined_s, unplanned_s = row
    return GroupState(
        group_id,
        version,
        planned_version,
        {UUID(member["coordinator"]): frozenset(member["topic_ids"]) for member in members if not member["draining"]},
        [
            ClaimState(
                topic_id,
                partition,
                None if owner is None else UUID(owner),
                free,
                None if target is None else UUID(target),
                paused,
                waiting_s or 0.0,
                overdue,
            )
            for topic_id, partition, owner, free, target, paused, waiting_s, overdue in claims
        ],
        frozenset(UUID(member["coordinator"]) for member in members if member["draining"]),
        float("inf") if joined_s is None else joined_s,
        unplanned_s,
    )


def withdraw_charge(coordinator: UUID) -> Statement[None]:
    """A coordinator that was declared dead is alive: its crash was none."""
    return Statement("withdraw_charge", "select coordinator.withdraw_charge(%s)", (coordinator,), lambda _rows: None)
