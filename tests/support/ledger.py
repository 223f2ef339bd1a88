"""What tests of delivery ask the tables: retries, dead letters, effects; and handlers that remember what they were given."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from support.shell import GROUP, query, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from coordinator import Message

EFFECTS = 'create table effects (value int not null, topic text, partition int, "offset" bigint)'


class Seen(NamedTuple):
    """One delivery: when it started, and when its handler ended (monotonic)."""

    value: Any
    attempt: int
    partition: int
    offset: int
    key: str | None
    started_s: float
    ended_s: float


@dataclass
class Recorder:
    """A handler that does what `act` does and remembers every delivery when it has ended."""

    act: Callable[[Message], Any] = lambda _message: None
    seen: list[Seen] = field(default_factory=list)
    started: list[Any] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, message: Message, *_: Any) -> Any:
        started_s = time.monotonic()
        with self._lock:
            self.started.append(message.value)
        try:
            return self.act(message)
        finally:
            with self._lock:
                self.seen.append(
                    Seen(
                        message.value,
                        message.attempt,
                        message.partition,
                        message.offset,
                        message.key,
                        started_s,
                        time.monotonic(),
                    )
                )

    def of(self, value: Any) -> list[Seen]:
        """The deliveries of one message, in the order in which they ended."""
        return [seen for seen in list(self.seen) if seen.value == value]

    def attempts(self, value: Any) -> list[int]:
        return [seen.attempt for seen in self.of(value)]

    def values(self) -> list[Any]:
        return [seen.value for seen in list(self.seen)]


def failing(values: Any, error: Callable[[], BaseException] = lambda: ValueError("as asked")) -> Callable[[Any], None]:
    """What a handler does that fails for these values, every time."""

    def act(message: Any) -> None:
        if message.value in values:
            raise error()

    return act


def failing_once(values: Any) -> Callable[[Any], None]:
    """What a handler does that fails for these values at attempt 1."""

    def act(message: Any) -> None:
        if message.attempt == 1 and message.value in values:
            raise ValueError("first time")

    return act


def dead(dsn: str, group: str = GROUP) -> list[dict[str, Any]]:
    """The dead letters of a group, by partition and offset."""
    rows = query(
        dsn,
        "select to_jsonb(d) || jsonb_build_object('payload', convert_from(d.payload, 'UTF8')) from coordinator.dead_letters d "
        'join coordinator.groups g using (group_id) where g.name = %s order by d.partition, d."offset"',
        group,
    )
    return [row[0] for row in rows]


def parked(dsn: str, group: str = GROUP) -> list[dict[str, Any]]:
    """The retries rows of a group, by partition and offset."""
    rows = query(
        dsn,
        "select to_jsonb(r) - 'payload' from coordinator.retries r join coordinator.groups g using (group_id) "
        'where g.name = %s order by r.partition, r."offset"',
        group,
    )
    return [row[0] for row in rows]


def settled(dsn: str, group: str = GROUP) -> bool:
    """Tell whether nothing is open or parked: by the tables alone."""
    rows = query(dsn, 'select lag, parked from coordinator.offsets o where o."group" = %s', group)
    return bool(rows) and all(lag == 0 and not count for lag, count in rows)


def wait_settled(dsn: str, limit_s: float = 30.0, group: str = GROUP) -> None:
    """Wait until a group has settled everything."""
    wait_until(lambda: settled(dsn, group), limit_s, f"group {group} settled")


def effects(dsn: str) -> Sequence[tuple[Any, ...]]:
    """How often each value has taken effect."""
    return query(dsn, "select value, count(*) from effects group by value order by value")
