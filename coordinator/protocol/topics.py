"""The functions of sql/functions/topics as data."""

from collections.abc import Sequence
from typing import Any

from coordinator.model import Retention, TopicInfo
from coordinator.protocol.check import int4, int8
from coordinator.protocol.statement import Row, Statement

DEFAULT_RETENTION = Retention()


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
            topic,
            int4("partitions", partitions),
            int4("max_message_bytes", max_message_bytes),
            wake,
            dedup_window_s,
            None if max_backlog is None else int8("max_backlog", max_backlog),
            *retention,
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
        (None if topics is None else list(topics),),
        lambda rows: [_topic(row) for row in rows],
    )


def add_segment(topic: str) -> Statement[int]:
    """First half of a rotation; to be committed before `open_segment`."""
    return Statement("add_segment", "select coordinator.add_segment(%s)", (topic,), lambda rows: int(rows[0][0]))


def open_segment(topic: str, segment: int) -> Statement[bool]:
    """Second half of a rotation, in a transaction of its own; False if the segment was current already."""
    return Statement(
        "open_segment",
        "select coordinator.open_segment(%s, %s)",
        (topic, int4("segment", segment)),
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
