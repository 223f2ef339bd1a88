"""The functions of sql/functions/dead_letters as data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from coordinator.model import DeadLetter, DeadLetterCause, DeadLetterTotals
from coordinator.protocol.statement import Flow, Statement, T, call
from coordinator.protocol.text import array

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime


class Filters(TypedDict, total=False):
    """Which dead letters are meant: those that match all that are given; None is as if not given.

    error is a regular expression of PostgreSQL's, found anywhere in the error. since and until (not included) are times of
    death, with a time zone.
    """

    topic: str | None
    partition: int | None
    offset: int | None
    reason: str | None
    error: str | None
    key: str | None
    since: datetime | None
    until: datetime | None


REASONS = ("attempts", "crash", "rejected", "skipped")

# By which a page begins behind another one: what dead letters are ordered by.
Place = tuple[Any, str, int, int]

_FILTERS = (
    "p_group => %(group)s, p_topic => %(topic)s, p_partition => %(partition)s, p_offset => %(offset)s, "
    "p_reason => %(reason)s, p_error => %(error)s, p_key => %(key)s, p_since => %(since)s, p_until => %(until)s"
)
_SELECT = (
    'select d.topic, d.partition, d."offset", d.key, d.message_id, d.published_at, d.content_type, '  # noqa: S608 - constants
    "d.headers, d.payload, "
    "d.payload_bytes, d.reason, d.error, d.attempts, d.crashes, d.replays, d.errors, d.died_at "
    f"from coordinator.select_dead_letters({_FILTERS}, p_after_died_at => %(after_died_at)s, "
    "p_after_topic => %(after_topic)s, p_after_partition => %(after_partition)s, p_after_offset => %(after_offset)s, "
    "p_limit => %(limit)s, p_full => %(full)s, p_max_bytes => %(max_bytes)s) d"
)
_STATS = (
    "select d.topic, d.reason, d.error, d.dead_letters, d.oldest, d.newest "  # noqa: S608 - as above
    f"from coordinator.dead_letter_stats({_FILTERS}) d"
)


def place_of(letter: DeadLetter) -> Place:
    """Return what the next page begins behind."""
    return letter.died_at, letter.topic, letter.partition, letter.offset


def select_dead_letters(
    group: str, filters: Filters, after: Place | None, limit: int, *, full: bool, max_bytes: int | None = None
) -> Statement[list[DeadLetter]]:
    """One page, those that died first first; an empty one is the end. Without `full`: no headers, payloads, histories."""
    died_at, topic, partition, offset = after or (None, None, None, None)
    return Statement(
        "select_dead_letters",
        _SELECT,
        {
            **_parameters(group, filters),
            "after_died_at": died_at,
            "after_topic": topic,
            "after_partition": partition,
            "after_offset": offset,
            "limit": limit,
            "full": full,
            "max_bytes": max_bytes,
        },
        lambda rows: [DeadLetter(*row) for row in rows],
    )


def dead_letter_stats(group: str, filters: Filters) -> Statement[list[DeadLetterCause]]:
    """Counts by topic, reason and first line of the error, the most frequent first."""
    return Statement(
        "dead_letter_stats",
        _STATS,
        _parameters(group, filters),
        lambda rows: [DeadLetterCause(*row) for row in rows],
    )


def dead_letter_totals(group: str) -> Statement[DeadLetterTotals]:
    """What a group has, may have, and has lost to its bound."""
    return Statement(
        "dead_letter_totals",
        "select d.dead_letters, d.max_dead_letters, d.dropped, d.oldest, d.newest, d.as_of "
        "from coordinator.dead_letter_totals(%s) d",
        (group,),
        lambda rows: DeadLetterTotals(*rows[0]),
    )


def dead_letter_counts(group: str) -> Statement[dict[tuple[str, int], int]]:
    """How many there are by topic and partition; none for an unknown group."""
    return Statement(
        "dead_letter_counts",
        'select d.topic, d.partition, d.dead_letters from coordinator.dead_letter_counts d where d."group" = %s',
        (group,),
        lambda rows: {(topic, partition): count for topic, partition, count in rows},
    )


def replay(group: str, topic: str, partition: int, offsets: Sequence[int], max_parked: int) -> Statement[list[str]]:
    """Give dead letters of one partition back; for each: replayed, gone or full."""
    return Statement(
        "replay",
        "select r.outcome from coordinator.replay(%s, %s, %s, %s, %s) r",
        (group, topic, partition, array(offsets), max_parked),
        lambda rows: [outcome for (outcome,) in rows],
    )


def purge(group: str, topic: str, partition: int, offsets: Sequence[int]) -> Statement[int]:
    """Delete dead letters of one partition; how many were there and not being replayed."""
    return Statement(
        "purge",
        "select coordinator.purge(%s, %s, %s, %s)",
        (group, topic, partition, array(offsets)),
        lambda rows: int(rows[0][0]),
    )


def set_max_dead_letters(group: str, max_dead_letters: int) -> Statement[int]:
    """Bound a group's dead letters; the bound before."""
    return Statement(
        "set_max_dead_letters",
        "select coordinator.set_max_dead_letters(%s, %s)",
        (group, max_dead_letters),
        lambda rows: int(rows[0][0]),
    )


def trim_dead_letters(limit: int = 1000) -> Statement[int]:
    """Drop what is over the bounds, `limit` at most per group; how many were dropped."""
    return Statement(
        "trim_dead_letters", "select coordinator.trim_dead_letters(%s)", (limit,), lambda rows: int(rows[0][0])
    )


def in_transaction(statement: Statement[T]) -> Flow[T]:
    """Run one statement in a transaction at READ COMMITTED, whatever the database's default is, on an idle connection."""
    yield from call(_command("begin isolation level read committed read write"))
    try:
        result = yield from call(statement)
    except Exception:
        # On a lost connection this fails too, and its error is raised with the first one as its context.
        yield from call(_command("rollback"))
        raise
    yield from call(_command("commit"))
    return result


def _command(text: str) -> Statement[None]:
    return Statement(text.split(maxsplit=1)[0], text, (), lambda _rows: None)


def _parameters(group: str, filters: Filters) -> Mapping[str, object]:
    return {"group": group, **{name: filters.get(name) for name in Filters.__annotations__}}
