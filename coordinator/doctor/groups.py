"""Groups that nobody reads for, owners that settle nothing, blocked keys, dead letters."""

from datetime import datetime

from coordinator.doctor.report import Limits, Notes, age_s, duration
from coordinator.model import BlockedClaim
from coordinator.protocol.doctor import GroupFacts, Upkeep


def unused(notes: Notes, found: list[GroupFacts], now: datetime, limits: Limits) -> None:
    """A group with messages to settle has members; otherwise it pins its segments for ever."""
    for group in found:
        age = age_s(group.progress_at, now)
        behind = group.lag > 0 or group.oldest_segment < group.current_segment
        if group.members or not behind or age <= limits.max_idle_s:
            continue
        pinned = (
            f" and keeps segments {group.oldest_segment} to {group.current_segment - 1}, {group.pinned_bytes} bytes"
            if group.pinned_bytes
            else ""
        )
        notes.warning(
            f"{group.group} on {group.topic}",
            f"nobody reads for it for {duration(age)}; it has {group.lag} messages to settle{pinned}",
            f"start its consumers; if nobody needs it any more: coordinator groups delete {group.group}",
        )


def stuck(notes: Notes, found: list[GroupFacts], now: datetime, limits: Limits) -> None:
    """An owner with a message in hand settles it some time."""
    for group in found:
        age = age_s(group.stuck_since, now) if group.stuck_since is not None else 0.0
        if group.members and age > limits.max_stuck_s:
            notes.warning(
                f"{group.group} on {group.topic}",
                f"an owner has messages in hand ({group.open} in all) and has settled nothing for {duration(age)}",
                f"see coordinator groups describe {group.group} for the partition and its host, and the process's status for "
                "the handler; a stuck one ends with its process, and its messages are delivered again",
            )


def locked(notes: Notes, found: list[BlockedClaim], limits: Limits) -> None:
    """A partition that nobody alive owns can be taken over."""
    for claim in found:
        for holder in claim.blockers:
            age = float("inf") if holder.transaction_age_s is None else holder.transaction_age_s
            if age <= limits.max_late_s:
                continue
            whose = (
                f"the prepared transaction {holder.prepared!r}"
                if holder.pid is None
                else f"{holder.application_name or holder.role} (pid {holder.pid}, {holder.state or 'state not visible'})"
            )
            notes.error(
                f"{claim.group} on {claim.topic}/{claim.partition}",
                f"nobody alive owns it, and it cannot be taken over: {whose} holds its row for {duration(age)}",
                f"select pg_terminate_backend({holder.pid})"
                if holder.pid is not None
                else f"commit prepared or rollback prepared '{holder.prepared}'",
            )


def blocked(notes: Notes, found: list[GroupFacts], now: datetime, limits: Limits) -> None:
    """A failing message does not hold up its key for ever."""
    for group in found:
        age = age_s(group.blocked_since, now) if group.blocked_since is not None else 0.0
        if group.blocked and age > limits.max_stuck_s:
            notes.warning(
                f"{group.group} on {group.topic}",
                f"{group.blocked} messages wait behind a failing one of their key, the first for {duration(age)}",
                "coordinator sql query blocked-keys names it; mend its handler, or skip that message: coordinator groups skip",
            )


def letters(notes: Notes, found: list[Upkeep], limits: Limits) -> None:
    """A group's dead letters stay below their bound, beyond which the oldest are dropped."""
    for group in found:
        if group.problem != "letters" or group.bound is None:
            continue
        if group.found > group.bound * limits.max_dead_letters_used:
            notes.warning(
                group.subject,
                f"{group.found} dead letters of at most {group.bound}; beyond that the oldest are dropped",
                f"coordinator dlq stats {group.subject} says why; mend the cause, then replay, export or purge them",
            )
