"""What pages ask the database for beside the public API: the views of sql/views, as data."""

from datetime import datetime
from typing import NamedTuple

from coordinator.protocol.statement import Statement


class WaitingMessage(NamedTuple):
    """A parked message, without its payload."""

    topic: str
    partition: int
    offset: int
    key: str | None
    fails: int
    crashes: int
    replays: int
    next_at: datetime
    behind_key: bool
    running: bool
    last_error: str | None


class BlockedKey(NamedTuple):
    """A key behind whose first parked message others wait in the table."""

    topic: str
    partition: int
    key: str
    waiting: int
    since: datetime


def waiting(group: str, limit: int) -> Statement[list[WaitingMessage]]:
    """Parked messages of a group that wait for their time, those due first first."""
    return Statement(
        "retry_list",
        'select r.topic, r.partition, r."offset", r.key, r.fails, r.crashes, r.replays, r.next_at, r.behind_key, r.running, '
        'r.last_error from coordinator.retry_list r where r."group" = %s and not r.behind_key '
        'order by r.next_at, r.topic, r.partition, r."offset" limit %s',
        (group, limit),
        lambda rows: [WaitingMessage(*row) for row in rows],
    )


def blocked_keys(group: str, limit: int) -> Statement[list[BlockedKey]]:
    """Keys with most messages parked, those with one alone left out."""
    return Statement(
        "retry_list",
        "select r.topic, r.partition, r.key, count(*) filter (where r.behind_key), min(r.created_at) "
        'from coordinator.retry_list r where r."group" = %s and r.key is not null '
        "group by r.topic, r.partition, r.key having bool_or(r.behind_key) "
        "order by 4 desc, r.topic, r.partition, r.key limit %s",
        (group, limit),
        lambda rows: [BlockedKey(*row) for row in rows],
    )
