"""Changes by hand as data: pause, seek, skip, deletion, topics that are altered; and the order in which they are done."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeAlias

from coordinator.errors import ConflictError, InvalidInputError, NotFoundError
from coordinator.model import (
    DeletedGroup,
    DeletedTopic,
    GroupInFlight,
    Oldest,
    PartitionPause,
    ScheduledMessage,
    SeekOutcome,
    SkipOutcome,
)
from coordinator.protocol.admin import group_offsets, list_groups
from coordinator.protocol.check import each, flag, int4, int8, maybe, moment, no_group, text, wrong
from coordinator.protocol.dead_letters import in_transaction
from coordinator.protocol.statement import Flow, Statement, T, call
from coordinator.protocol.text import array
from coordinator.protocol.topics import MAX_PARTITIONS, checked_setting

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

# A hold lasts so long, and so much longer for each partition that has to be moved under it.
_HOLD_S = 30.0
_HOLD_PER_PARTITION_S = 6.0
_MAX_HOLD_S = 600.0

# earliest, latest, an offset, or a time.
Target: TypeAlias = "str | int | datetime"
Place: TypeAlias = "tuple[str, int]"


def pause(
    group: str, topic: str | None, partitions: Sequence[int] | None, reason: str | None
) -> Flow[list[PartitionPause]]:
    return in_transaction(_pausing("pause", group, topic, partitions, reason))


def resume(
    group: str, topic: str | None, partitions: Sequence[int] | None, reason: str | None
) -> Flow[list[PartitionPause]]:
    return in_transaction(_pausing("resume", group, topic, partitions, reason))


def seek(
    group: str,
    *,
    topic: str | None,
    partitions: Sequence[int] | None,
    to: Target | None,
    by: int | None,
    offsets: Mapping[Place, int] | None,
    force: bool,
    dry_run: bool,
    reason: str | None,
) -> Flow[list[SeekOutcome]]:
    """Look where each partition would go; refuse; hold what is live; then move one partition after the other."""
    if sum(given is not None for given in (to, by, offsets)) != 1:
        raise InvalidInputError("a seek goes to one target: to=, by= or offsets=; give one of them")
    _check_target(to)
    maybe(int8, "by", by)
    if offsets is not None and not hasattr(offsets, "items"):
        raise wrong("offsets", "a mapping of (topic, partition) to an offset", offsets, typed=True)
    for offset in () if offsets is None else offsets.values():
        int8("each offset of offsets", offset)
    _check_change(group, topic, reason)
    flag("force", force)
    flag("dry_run", dry_run)
    if partitions is not None and topic is None:
        raise InvalidInputError("partitions are those of a topic: name it")
    places = yield from _places(group, topic, partitions, offsets)
    target = {
        place: ("shift", by) if by is not None else ("to", to if offsets is None else offsets[place])
        for place in places
    }
    outcomes = []
    for place in places:
        statement = _seek(group, place, target[place], force=force, execute=False, reason=reason)
        outcomes += [(yield from call(statement))]
    if dry_run:
        return outcomes
    live = max((outcome.members for outcome in outcomes), default=0)
    if live and not force:
        raise ConflictError(
            f"group {group!r} has {live} live members that read what is to be moved",
            hint="Stop them first, or force it: they lose the partitions, and what they are doing there is done again.",
        )
    return (yield from _held(group, places, live, _seek_each(group, places, target, force=force, reason=reason)))


def skip(
    group: str, topic: str, partition: int, offset: int, *, dead_letter: bool, dry_run: bool, reason: str | None
) -> Flow[SkipOutcome]:
    _check_change(group, topic, reason)
    text("topic", topic)
    flag("dead_letter", dead_letter)
    flag("dry_run", dry_run)
    look = yield from call(
        _skip(group, topic, partition, offset, dead_letter=dead_letter, execute=False, reason=reason)
    )
    if dry_run:
        return look
    statement = _skip(group, topic, partition, offset, dead_letter=dead_letter, execute=True, reason=reason)
    return (yield from _held(group, [(topic, partition)], look.members, in_transaction(statement)))


def delete_group(group: str, *, force: bool, reason: str | None) -> Flow[DeletedGroup]:
    _check_change(group, None, reason)
    flag("force", force)
    statement: Statement[DeletedGroup] = Statement(
        "delete_group",
        "select d.members, d.claims, d.dead_letters from coordinator.delete_group(%s, %s, %s) d",
        (group, force, reason),
        lambda rows: DeletedGroup(*rows[0]),
    )
    places = (yield from _places(group, None, None, None)) if force else []
    return (yield from _held(group, places, int(force), in_transaction(statement)))


def delete_topic(topic: str, *, force: bool, reason: str | None) -> Flow[DeletedTopic]:
    flag("force", force)
    maybe(text, "reason", reason)
    deleted = yield from in_transaction(
        Statement(
            "delete_topic",
            "select d.groups, d.members, d.unsettled, d.scheduled from coordinator.delete_topic(%s, %s, %s) d",
            (text("topic", topic), force, reason),
            lambda rows: DeletedTopic(tuple(rows[0][0]), *rows[0][1:]),
        )
    )
    # What a publisher still holds goes later, with maintenance.
    yield from in_transaction(drop_remains())
    return deleted


def drop_remains() -> Statement[list[str]]:
    """Drop tables and sequences of deleted topics; returns those that somebody still holds."""
    return Statement(
        "drop_remains",
        "select d.remains, d.dropped from coordinator.drop_remains() d",
        (),
        lambda rows: [name for name, dropped in rows if not dropped],
    )


def add_partitions(topic: str, partitions: int, reason: str | None) -> Flow[int]:
    return in_transaction(
        Statement(
            "add_partitions",
            "select coordinator.add_partitions(%s, %s, %s)",
            (text("topic", topic), int4("partitions", partitions, 1, MAX_PARTITIONS), maybe(text, "reason", reason)),
            lambda rows: int(rows[0][0]),
        )
    )


def alter_topic(topic: str, settings: Mapping[str, Any], reason: str | None) -> Flow[dict[str, Any]]:
    checked = {name: checked_setting(name, value) for name, value in settings.items()}
    return in_transaction(
        Statement(
            "alter_topic",
            "select coordinator.alter_topic(%s, %s::jsonb, %s)",
            (text("topic", topic), json.dumps(checked), maybe(text, "reason", reason)),
            lambda rows: dict(rows[0][0] or {}),
        )
    )


def list_scheduled(topic: str | None, limit: int) -> Statement[list[ScheduledMessage]]:
    return Statement(
        "list_scheduled",
        "select s.schedule_id, s.topic, s.message_id, s.key, s.due_at, s.next_at, s.attempts, s.last_error, s.payload_bytes, "
        "s.created_at from coordinator.scheduled_messages s where %s::text is null or s.topic = %s::text "
        "order by s.due_at, s.schedule_id limit %s",
        (maybe(text, "topic", topic), topic, int4("limit", limit, 1)),
        lambda rows: [ScheduledMessage(*row) for row in rows],
    )


def cancel_scheduled(topic: str, schedule_ids: Sequence[int]) -> Flow[list[int]]:
    return in_transaction(
        Statement(
            "cancel_scheduled",
            "select coordinator.cancel_scheduled(%s, %s)",
            (text("topic", topic), array(each(int8, "schedule_ids", schedule_ids, "a list of schedule_ids"))),
            lambda rows: sorted(rows[0][0]),
        )
    )


def group_in_flight(group: str) -> Statement[list[GroupInFlight]]:
    return Statement(
        "group_in_flight",
        "select i.topic, i.partition, i.member_id, i.client_id, i.host, i.first_offset, i.messages, i.retries, i.since "
        'from coordinator.in_flight i where i."group" = %s order by i.topic, i.partition',
        (text("group", group),),
        lambda rows: [GroupInFlight(*row) for row in rows],
    )


def oldest_unsettled(group: str) -> Statement[dict[Place, Oldest]]:
    return Statement(
        "oldest_unsettled",
        'select o.topic, o."partition", o."offset", o.published_at, o.age_s from coordinator.oldest_unsettled(%s) o',
        (text("group", group),),
        lambda rows: {(topic, partition): Oldest(*rest) for topic, partition, *rest in rows},
    )


def _places(
    group: str, topic: str | None, partitions: Sequence[int] | None, offsets: Mapping[Place, int] | None
) -> Flow[list[Place]]:
    """The partitions that are meant, by topic and number. Raises: NotFoundError for one that the group does not read."""
    numbers = None if partitions is None else _numbers(partitions)
    named = None if offsets is None else [_place(place) for place in offsets]
    there = [(row.topic, row.partition) for row in (yield from call(group_offsets(group)))]
    if not there:
        known = [info.name for info in (yield from call(list_groups()))]
        if group not in known:
            raise no_group(group, known)
    if named is not None:
        wanted = named
    elif numbers is not None:
        wanted = [(str(topic), number) for number in numbers]
    else:
        wanted = [place for place in there if topic in (None, place[0])]
        # Of a group whose topics are all deleted there is nothing left but to delete it.
        if not wanted and topic is not None:
            read = ", ".join(sorted({name for name, _ in there})) or "nothing any more"
            raise NotFoundError(f"group {group!r} reads no topic {topic!r}", hint=f"It reads: {read}")
    for name, number in wanted:
        if (name, number) not in there:
            raise NotFoundError(f"group {group!r} has no partition {number} of topic {name!r}")
    return sorted(set(wanted))


def _held(group: str, places: Sequence[Place], live: int, work: Flow[T]) -> Flow[T]:
    """Hold what live members have before `work` waits for it (R9); what work leaves held is let go."""
    if not live:
        return (yield from work)
    hold_s = min(_HOLD_S + _HOLD_PER_PARTITION_S * len(places), _MAX_HOLD_S)
    for topic in sorted({topic for topic, _ in places}):
        numbers = array(number for name, number in places if name == topic)
        yield from in_transaction(
            Statement(
                "hold", "select coordinator.hold(%s, %s, %s, %s)", (group, topic, numbers, hold_s), lambda _rows: None
            )
        )
    try:
        return (yield from work)
    except Exception:
        for topic in sorted({topic for topic, _ in places}):
            numbers = array(number for name, number in places if name == topic)
            # Where this fails too, the hold ends by itself.
            yield from in_transaction(
                Statement(
                    "let_go", "select coordinator.let_go(%s, %s, %s)", (group, topic, numbers), lambda _rows: None
                )
            )
        raise


def _seek_each(
    group: str, places: Sequence[Place], target: Mapping[Place, tuple[str, Any]], *, force: bool, reason: str | None
) -> Flow[list[SeekOutcome]]:
    moved: list[SeekOutcome] = []
    for place in places:
        try:
            moved.append(
                (
                    yield from in_transaction(
                        _seek(group, place, target[place], force=force, execute=True, reason=reason)
                    )
                )
            )
        except Exception as error:
            if moved:
                error.add_note(f"{len(moved)} of {len(places)} partitions were moved before that")
            raise
    return moved


def _seek(
    group: str, place: Place, target: tuple[str, Any], *, force: bool, execute: bool, reason: str | None
) -> Statement[SeekOutcome]:
    kind, value = target
    if kind == "to":
        kind = "time" if _is_time(value) else "offset" if isinstance(value, int) else value
    number, time = (value if kind in ("offset", "shift") else None), (value if kind == "time" else None)
    return Statement(
        "seek",
        "select s.from_offset, s.wanted_offset, s.to_offset, s.log_start_offset, s.log_end_offset, s.members, s.skipped, "
        "s.parked, s.dead_letters, s.epoch from coordinator.seek(%s, %s, %s, %s, %s, %s, %s, %s, %s) s",
        (group, *place, kind, number, time, force, execute, reason),
        lambda rows: SeekOutcome(*place, *rows[0]),
    )


def _skip(
    group: str, topic: str, partition: int, offset: int, *, dead_letter: bool, execute: bool, reason: str | None
) -> Statement[SkipOutcome]:
    return Statement(
        "skip",
        "select s.state, s.key, s.message_id, s.published_at, s.attempts, s.error, s.members, s.epoch "
        "from coordinator.skip(%s, %s, %s, %s, %s, %s, %s) s",
        (group, topic, int4("partition", partition), int8("offset", offset), dead_letter, execute, reason),
        lambda rows: SkipOutcome(topic, partition, offset, *rows[0]),
    )


def _pausing(
    function: str, group: str, topic: str | None, partitions: Sequence[int] | None, reason: str | None
) -> Statement[list[PartitionPause]]:
    statement = {
        "pause": 'select p.topic, p."partition", p.changed from coordinator.pause(%s, %s, %s, %s) p',
        "resume": 'select p.topic, p."partition", p.changed from coordinator.resume(%s, %s, %s, %s) p',
    }[function]
    _check_change(group, topic, reason)
    numbers = None if partitions is None else array(_numbers(partitions))
    return Statement(
        function, statement, (group, topic, numbers, reason), lambda rows: [PartitionPause(*row) for row in rows]
    )


def _numbers(partitions: Sequence[int]) -> list[int]:
    return each(int4, "partitions", partitions, "a list of numbers of partitions")


def _place(place: Place) -> Place:
    if not isinstance(place, tuple) or len(place) != 2:  # type: ignore[redundant-expr] # noqa: PLR2004 - a pair
        raise wrong("each of offsets", "a pair of topic and partition, with an offset", place)
    return text("topic", place[0]), int4("partition", place[1])


def _check_change(group: str, topic: str | None, reason: str | None) -> None:
    text("group", group)
    maybe(text, "topic", topic)
    maybe(text, "reason", reason)


def _check_target(to: object) -> None:
    if to is None or to in ("earliest", "latest"):
        return
    if _is_time(to):
        moment("to", to)
    elif isinstance(to, int) and not isinstance(to, bool):
        int8("to", to)
    else:
        raise wrong(
            "to", "earliest, latest, an offset, or a datetime with a time zone", to, typed=not isinstance(to, str)
        )


def _is_time(target: object) -> bool:
    # This package imports no clock, and so no datetime.
    return hasattr(target, "tzinfo")
