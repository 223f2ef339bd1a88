"""The functions of sql/functions/messages as data, but for publishing, whose arrays the producers encode themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from coordinator.model import MessageState
from coordinator.model import Row as MessageRow
from coordinator.protocol.check import int4, int8, text
from coordinator.protocol.statement import Statement

if TYPE_CHECKING:
    from datetime import datetime

# Parameters: topic, payloads, keys, headers, message ids, content types, partitions, wake.
PUBLISH_MANY = (
    "select p.partitions, p.offsets, p.message_ids from coordinator.publish_many(%s, %s, %s, %s, %s, %s, %s, %s) p"
)
# And dedup keys, on_duplicate, delays, times. A statement of its own: most calls have none of these, and each parameter
# and column costs a microsecond or two.
PUBLISH_SELECTED = (
    "select p.partitions, p.offsets, p.message_ids, p.duplicates, p.due_ats "
    "from coordinator.publish_many(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s) p"
)


class PublishCall(NamedTuple):
    """One of the texts above with its parameters."""

    text: str
    parameters: tuple[object, ...]


def peek(topic: str, partition: int, from_offset: int, limit: int) -> Statement[list[MessageRow]]:
    """Up to `limit` visible messages from an offset on; `ord` is the partition."""
    return Statement(
        "peek",
        'select p."partition", p."offset", p.published_at, p.message_id, p.key, p.headers, p.content_type, p.payload '
        "from coordinator.peek(%s, %s, %s, %s) p",
        (
            text("topic", topic),
            int4("partition", partition, 0),
            int8("from_offset", from_offset, 0),
            int4("limit", limit, 1),
        ),
        lambda rows: [MessageRow(*row) for row in rows],
    )


def message_states(topic: str, partition: int, offset: int) -> Statement[list[MessageState]]:
    """What one offset is to each group that reads the topic."""
    return Statement(
        "message_states",
        'select m."group", m.state, m.epoch, m.member_id, m.client_id, m.host, m.fails, m.crashes, m.replays, m.next_at, '
        "m.reason, m.error, m.errors, m.since from coordinator.message_states(%s, %s, %s) m",
        (text("topic", topic), int4("partition", partition, 0), int8("offset", offset, 0)),
        lambda rows: [MessageState(*row) for row in rows],
    )


def offset_at(topic_id: int, partition: int, time: datetime) -> Statement[int]:
    """The first offset from which on every message published at or after a time is read."""
    return Statement(
        "offset_at",
        "select coordinator.offset_at(%s, %s, %s)",
        (topic_id, partition, time),
        lambda rows: int(rows[0][0]),
    )
