"""Running a publish: its arrays go out in binary form, and the answer stays in binary form until it is looked at."""

from collections.abc import Iterator, Sequence
from typing import Any, overload

import psycopg
from psycopg import pq
from psycopg.adapt import AdaptersMap

from coordinator.db import arrays
from coordinator.db.exchange import aafter, after, at_once
from coordinator.db.translate import translate
from coordinator.model import Published, Scheduled
from coordinator.protocol import deliveries
from coordinator.protocol.messages import PublishCall
from coordinator.protocol.placeholder import render

_ADAPTERS = AdaptersMap(psycopg.adapters)
arrays.register(_ADAPTERS)


class _Cursor(psycopg.Cursor[Any]):
    adapters = property(lambda _self: _ADAPTERS)


class _AsyncCursor(psycopg.AsyncCursor[Any]):
    adapters = property(lambda _self: _ADAPTERS)


# So many of a batch are in its repr.
_SHOWN = 3


class PublishedBatch(Sequence[Published | Scheduled]):
    """The places of a batch's messages, in the order in which they were given; decoded where they are looked at."""

    __slots__ = ("_due_ats", "_duplicates", "_ids", "_offsets", "_partitions", "_topic")

    def __init__(
        self,
        topic: str,
        partitions: bytes,
        offsets: bytes,
        ids: bytes,
        duplicates: bytes | None = None,
        due_ats: bytes | None = None,
    ) -> None:
        self._topic = topic
        self._partitions: Sequence[int | None]
        self._offsets: Sequence[int | None]
        if due_ats is None:
            self._partitions = arrays.read_ints(partitions, "i")
            self._offsets = arrays.read_ints(offsets, "q")
        else:
            # What waits for its time has no place.
            self._partitions = arrays.read_nullable_ints(partitions, "i")
            self._offsets = arrays.read_nullable_ints(offsets, "q")
        self._ids = ids
        self._duplicates = None if duplicates is None else arrays.read_bools(duplicates)
        self._due_ats = None if due_ats is None else arrays.read_times(due_ats)

    def __len__(self) -> int:
        return len(self._offsets)

    @overload
    def __getitem__(self, place: int) -> Published | Scheduled: ...
    @overload
    def __getitem__(self, place: slice) -> list[Published | Scheduled]: ...
    def __getitem__(self, place: int | slice) -> Published | Scheduled | list[Published | Scheduled]:
        if isinstance(place, slice):
            return [self._at(index) for index in range(*place.indices(len(self)))]
        index = place + len(self) if place < 0 else place
        if not 0 <= index < len(self):
            message = f"place {place} of {len(self)}"
            raise IndexError(message)
        return self._at(index)

    def __repr__(self) -> str:
        shown = [repr(self._at(index)) for index in range(min(len(self), _SHOWN))]
        return f"PublishedBatch({len(self)}: {', '.join(shown)}{', ...' if len(self) > _SHOWN else ''})"

    def __iter__(self) -> Iterator[Published | Scheduled]:
        return (self._at(index) for index in range(len(self)))

    def _at(self, index: int) -> Published | Scheduled:
        message_id = arrays.read_uuid(self._ids, index)
        duplicate = self._duplicates is not None and self._duplicates[index]
        due_at = None if self._due_ats is None else self._due_ats[index]
        if due_at is not None:
            return Scheduled(self._topic, message_id, due_at, duplicate)
        partition, offset = self._partitions[index], self._offsets[index]
        assert partition is not None
        assert offset is not None
        return Published(self._topic, partition, offset, message_id, duplicate)


def run(connection: psycopg.Connection[Any], schema: str, topic: str, call: PublishCall) -> PublishedBatch:
    """Publish in whatever transaction the connection is in; one round trip."""
    cursor = _Cursor(connection)
    try:
        cursor.execute(render(call.text, schema), call.parameters, binary=True)
        if connection.pgconn.pipeline_status:
            cursor.fetchone()
    except psycopg.Error as error:
        raise _ours(error, connection) from error
    return _batch(topic, cursor.pgresult)


async def arun(connection: psycopg.AsyncConnection[Any], schema: str, topic: str, call: PublishCall) -> PublishedBatch:
    """`run` for an AsyncConnection."""
    cursor = _AsyncCursor(connection)
    try:
        await cursor.execute(render(call.text, schema), call.parameters, binary=True)
        if connection.pgconn.pipeline_status:
            await cursor.fetchone()
    except psycopg.Error as error:
        raise _ours(error, connection) from error
    return _batch(topic, cursor.pgresult)


def run_alone(connection: psycopg.Connection[Any], schema: str, topic: str, call: PublishCall) -> PublishedBatch:
    """Publish in a transaction of its own, on a connection in autocommit mode; one round trip."""
    cursor = _Cursor(connection)
    try:
        with connection.pipeline() as pipeline, at_once(pipeline):
            connection.execute(deliveries.BEGIN)
            connection.execute(render(deliveries.CALLERS_LIMITS, schema))
            cursor.execute(render(call.text, schema), call.parameters, binary=True)
            connection.execute(deliveries.COMMIT)
    except psycopg.Error as error:
        raise (after(error, connection) or error) from error
    return _batch(topic, cursor.pgresult)


async def arun_alone(
    connection: psycopg.AsyncConnection[Any], schema: str, topic: str, call: PublishCall
) -> PublishedBatch:
    """`run_alone` for an AsyncConnection."""
    cursor = _AsyncCursor(connection)
    try:
        async with connection.pipeline() as pipeline:
            with at_once(pipeline):
                await connection.execute(deliveries.BEGIN)
                await connection.execute(render(deliveries.CALLERS_LIMITS, schema))
                await cursor.execute(render(call.text, schema), call.parameters, binary=True)
                await connection.execute(deliveries.COMMIT)
    except psycopg.Error as error:
        raise (await aafter(error, connection) or error) from error
    return _batch(topic, cursor.pgresult)


def _batch(topic: str, result: Any) -> PublishedBatch:
    assert result is not None
    assert result.fformat(0) == pq.Format.BINARY
    return PublishedBatch(topic, *(result.get_value(0, column) for column in range(result.nfields)))


def _ours(error: psycopg.Error, connection: psycopg.BaseConnection[Any]) -> Exception:
    return translate(error, connection) or error
