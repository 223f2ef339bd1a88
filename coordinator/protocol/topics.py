"""The functions of sql/functions/topics as data."""

from collections.abc import Sequence
from typing import Any

from coordinator.errors import InvalidInputError
from coordinator.model import Retention, TopicInfo
from coordinator.protocol.check import each, flag, int4, int8, maybe, nearest, number, text, wrong
from coordinator.protocol.statement import Row, Statement

DEFAULT_RETENTION = Retention()
MAX_PARTITIONS = 1024
_SETTINGS = ("max_message_bytes", "wake", "dedup_window_s", "max_backlog", *Retention._fields)


def checked_setting(name: str, value: object) -> object:
    """Return what a setting of a topic is to be.

    Raises:
        InvalidInputError: No topic can have it, or there is no such setting.
    """
    match name:
        case "max_message_bytes":
            return int4(name, value, 1, 256 * 1024 * 1024)
        case "wake":
            return flag(name, value)
        case "unconsumed":
            if value not in ("keep", "drop"):
                raise wrong(name, "keep or drop", value)
            return value
        case "dedup_window_s":
            return maybe(lambda name, value: number(name, value, 1, 31622400), name, value)
        case "retention_s" | "segment_max_age_s":
            return maybe(lambda name, value: number(name, value, 1, 3.2e9), name, value)
        case "retention_bytes" | "max_backlog":
            return maybe(lambda name, value: int8(name, value, 1), name, value)
        case "segment_max_bytes":
            return maybe(lambda name, value: int8(name, value, 8192), name, value)
    if name == "partitions":
        raise InvalidInputError(
            "partitions are no setting of a topic: they are added by add_partitions, and never taken away"
        )
    raise InvalidInputError(f"a topic has no setting {name!r}; {nearest(name, _SETTINGS)}")


def create_topic(
    topic: str,
    partitions: int,
    max_message_bytes: int,
    *,
    wake: bool,
    dedup_window_s: float | None = None,
    max_backlog: int | None = None,
    retention: Retention = DEFAULT_RETENTION,
) -> Statement[bool]:
    """True if the topic was created, False if it existed with as many partitions."""
    return Statement(
        "create_topic",
        "select c.created from coordinator.create_topic(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s) c",
        (
            text("topic", topic),
            int4("partitions", partitions, 1, MAX_PARTITIONS),
            *(
                checked_setting(name, value)
                for name, value in (
                    ("max_message_bytes", max_message_bytes),
                    ("wake", wake),
                    ("dedup_window_s", dedup_window_s),
                    ("max_backlog", max_backlog),
                    *retention._asdict().items(),
                )
            ),
        ),
        lambda rows: bool(rows[0][0]),
    )


def describe_topics(topics: Sequence[str] | None = None) -> Statement[list[TopicInfo]]:
    """All topics, or those named; an unknown name is an error."""
    return Statement(
        "describe_topics",
        "select d.topic_id, d.name, d.partitions, d.max_message_bytes, d.wake, d.channel, d.segment, d.first_segment, "
        "d.created_at, d.high_offsets, d.bytes, d.dedup_window_s, d.max_backlog, d.retention_s, d.retention_bytes, "
        "d.unconsumed, d.segment_max_age_s, d.segment_max_bytes, d.first_offsets from coordinator.describe_topics(%s) d",
        (None if topics is None else each(text, "topics", topics, "a list of names"),),
        lambda rows: [_topic(row) for row in rows],
    )


def add_segment(topic: str) -> Statement[int]:
    """First half of a rotation; to be committed before `open_segment`."""
    return Statement(
        "add_segment", "select coordinator.add_segment(%s)", (text("topic", topic),), lambda rows: int(rows[0][0])
    )


def open_segment(topic: str, segment: int) -> Statement[bool]:
    """Second half of a rotation, in a transaction of its own; False if the segment was current already."""
    return Statement(
        "open_segment",
        "select coordinator.open_segment(%s, %s)",
        (text("topic", topic), int4("segment", segment)),
        lambda rows: bool(rows[0][0]),
    )


def _topic(row: Row) -> TopicInfo:
    values: list[Any] = list(row)
    values[9] = tuple(values[9])
    values[18] = tuple(values[18])
    return TopicInfo(*values)


def max_message_bytes(topic: str) -> Statement[int | None]:
    """The largest payload a topic takes; None for an unknown topic, which is no error and spoils no transaction."""
    return Statement("max_message_bytes", "select coordinator.max_message_bytes(%s)", (topic,), lambda rows: rows[0][0])
