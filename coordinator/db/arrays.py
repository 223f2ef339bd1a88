"""Arrays in PostgreSQL's binary form, built and read in one go.

psycopg dumps a list element by element through Python adapters; for batches of a thousand that is most of a publish. Here an
array is one join of bytes, and the answer of a publish is read lazily, where it is looked at.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any
from uuid import UUID

from psycopg import adapt, pq

_BYTEA, _TEXT, _UUID, _INT4 = 17, 25, 2950, 23
_BYTEA_ARRAY, _TEXT_ARRAY, _UUID_ARRAY, _INT4_ARRAY = 1001, 1009, 2951, 1007
_HEADER = struct.Struct("!iiIii")
_LENGTH = struct.Struct("!i").pack
_NULL = _LENGTH(-1)
# Times travel as microseconds since then.
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


class BinaryArray:
    """A parameter that is in its wire form already."""

    __slots__ = ("data",)
    oid = 0

    def __init__(self, data: bytes) -> None:
        self.data = data


class ByteaArray(BinaryArray):
    oid = _BYTEA_ARRAY


class TextArray(BinaryArray):
    oid = _TEXT_ARRAY


class UuidArray(BinaryArray):
    oid = _UUID_ARRAY


class IntArray(BinaryArray):
    oid = _INT4_ARRAY


def bytea_array(items: Sequence[bytes]) -> ByteaArray:
    """Encode payloads; none may be None."""
    return ByteaArray(_encode(items, _BYTEA, nulls=False))


def text_array(items: Sequence[str | None]) -> TextArray:
    """Encode texts.

    Raises:
        UnicodeEncodeError: If one holds lone surrogates.
    """
    return TextArray(_encode([None if item is None else item.encode() for item in items], _TEXT, nulls=True))


def uuid_array(items: Sequence[UUID | None]) -> UuidArray:
    return UuidArray(_encode([None if item is None else item.bytes for item in items], _UUID, nulls=True))


def int_array(items: Sequence[int | None]) -> IntArray:
    return IntArray(_encode([None if item is None else _LENGTH(item) for item in items], _INT4, nulls=True))


def _encode(items: Sequence[bytes | None], oid: int, *, nulls: bool) -> bytes:
    header = _HEADER.pack(1, int(nulls), oid, len(items), 1)
    if nulls:
        parts: Iterable[bytes] = chain.from_iterable(
            (_NULL,) if item is None else (_LENGTH(len(item)), item) for item in items
        )
    else:
        parts = chain.from_iterable((_LENGTH(len(item)), item) for item in items if item is not None)
    return header + b"".join(parts)


def read_ints(data: bytes, code: str) -> tuple[int, ...]:
    """Decode an int4[] (code i) or int8[] (code q) without nulls, of one dimension or empty."""
    if len(data) < _HEADER.size:
        return ()
    count = (len(data) - _HEADER.size) // (4 + struct.calcsize("!" + code))
    return struct.unpack_from("!" + f"4x{code}" * count, data, _HEADER.size)


def read_nullable_ints(data: bytes, code: str) -> tuple[int | None, ...]:
    """`read_ints` for an array that may hold nulls."""
    return tuple(None if item is None else struct.unpack("!" + code, item)[0] for item in _items(data))


def read_bools(data: bytes) -> tuple[bool, ...]:
    """Decode a boolean[] without nulls."""
    return tuple(item == b"\x01" for item in _items(data))


def read_times(data: bytes) -> tuple[datetime | None, ...]:
    """Decode a timestamptz[]."""
    return tuple(
        None if microseconds is None else _EPOCH + timedelta(microseconds=microseconds)
        for microseconds in read_nullable_ints(data, "q")
    )


def _items(data: bytes) -> Iterator[bytes | None]:
    place = _HEADER.size
    while place < len(data):
        length = struct.unpack_from("!i", data, place)[0]
        place += 4
        if length < 0:
            yield None
        else:
            yield data[place : place + length]
            place += length


def read_uuid(data: bytes, place: int) -> UUID:
    """Decode one element of a uuid[] without nulls."""
    start = _HEADER.size + 20 * place + 4
    return UUID(bytes=data[start : start + 16])


class _BinaryArrayDumper(adapt.Dumper):
    format = pq.Format.BINARY

    def dump(self, obj: BinaryArray) -> bytes:
        return obj.data


def register(adapters: adapt.AdaptersMap) -> None:
    """Teach psycopg to send these as they are."""
    for kind in (ByteaArray, TextArray, UuidArray, IntArray):
        dumper: Any = type(f"{kind.__name__}Dumper", (_BinaryArrayDumper,), {"oid": kind.oid})
        adapters.register_dumper(kind, dumper)
