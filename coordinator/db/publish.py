"""Running a publish: its arrays go out in binary form, and the answer stays in binary form until it is looked at."""

from collections.abc import Iterator, Sequence
from typing import Any, overload

import psycopg
from psycopg import pq
from psycopg.adapt import AdaptersMap

from coordinator.db import arrays
from coordinator.db.translate import translate
from coordinator.model import Published
from coordinator.protocol.messages import PUBLISH_MANY
from coordinator.protocol.placeholder import render

_ADAPTERS = AdaptersMap(psycopg.adapters)
arrays.register(_ADAPTERS)

Parameters = tuple[object, ...]


class _Cursor(psycopg.Cursor[Any]):
    adapters = property(lambda _self: _ADAPTERS)


class _AsyncCursor(psycopg.AsyncCursor[Any]):
    adapters = property(lambda _self: _ADAPTERS)


class PublishedBatch(Sequence[Published]):
    """The places of a batch's messages, in the order in which they were given; decoded where they are looked at."""

    __slots__ = ("_ids", "_offsets", "_partitions", "_topic")

    def __init__(self, topic: str, partitions: bytes, offsets: bytes, ids: bytes) -> None:
        self._topic = topic
        self._partitions = arrays.read_ints(partitions, "i")
        self._offsets = arrays.read_ints(offsets, "q")
        self._ids = ids

    def __len__(self) -> int:
        return len(self._offsets)

    @overload
    def __getitem__(self, place: int) -> Published: ...
    @overload
    def __getitem__(self, place: slice) -> list[Published]: ...
    def __getitem__(self, place: int | slice) -> Published | list[Published]:
        if isinstance(place, slice):
            return [self._at(index) for index in range(*place.indices(len(self)))]
        index = place + len(self) if place < 0 else place
        if not 0 <= index < len(self):
            message = f"place {place} of {len(self)}"
            raise IndexError(message)
        return self._at(index)

    def __iter__(self) -> Iterator[Published]:
        return (self._at(index) for index in range(len(self)))

    def _at(self, index: int) -> Published:
        return Published(self._topic, self._partitions[index], self._offsets[index], arrays.read_uuid(self._ids, index))


def run(connection: psycopg.Connection[Any], schema: str, topic: str, parameters: Parameters) -> PublishedBatch:
    """Publish in whatever transaction the connection is in; one round trip."""
    cursor = _Cursor(connection)
    try:
        cursor.execute(render(PUBLISH_MANY, schema), parameters, binary=True)
        if connection.pgconn.pipeline_status:
            cursor.fetchone()
    except psycopg.Error as error:
        raise _ours(error, connection) from error
    return _batch(topic, cursor.pgresult)


async def arun(
    connection: psycopg.AsyncConnection[Any], schema: str, topic: str, parameters: Parameters
) -> PublishedBatch:
    """`run` for an AsyncConnection."""
    cursor = _AsyncCursor(connection)
    try:
        await cursor.execute(render(PUBLISH_MANY, schema), parameters, binary=True)
        if connection.pgconn.pipeline_status:
            await cursor.fetchone()
    except psycopg.Error as error:
        raise _ours(error, connection) from error
    return _batch(topic, cursor.pgresult)


def _batch(topic: str, result: Any) -> PublishedBatch:
    assert result is not None
    assert result.fformat(0) == pq.Format.BINARY
    return PublishedBatch(topic, result.get_value(0, 0), result.get_value(0, 1), result.get_value(0, 2))


def _ours(error: psycopg.Error, connection: psycopg.BaseConnection[Any]) -> Exception:
    return translate(error, connection) or error
