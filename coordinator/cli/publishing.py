"""Lines to messages: any number of them, in batches, with the number of the line in every complaint."""

import gzip
import json
import math
import os
import select
import stat
import sys
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn, cast

import click

from coordinator.errors import CoordinatorError, InvalidInputError, UnavailableError
from coordinator.model import Outgoing, Published
from coordinator.producer.encode import MAX_KEY_BYTES, json_encode

if TYPE_CHECKING:
    from coordinator.app import Coordinator

_CHUNK_BYTES = 1 << 18
# A batch is sent once it holds so much, however few messages that is: this bounds the memory of the command.
_MAX_BATCH_BYTES = 8 << 20
# A batch that is not full is sent when nothing came for so long, such as from `tail -f`.
_IDLE_S = 0.1
# A line of JSON may be longer than its payload: \u0041 has six bytes for a character of one. White space apart.
_LINE_BYTES_PER_PAYLOAD_BYTE = 6
_SHOWN_CHARS = 60


@dataclass(frozen=True, slots=True)
class Form:
    """What the input is made of, and what every message gets."""

    raw: bool = False
    whole: bool = False
    key: str | None = None
    key_field: str | None = None
    require_key: bool = False
    headers: Mapping[str, Any] | None = None
    partition: int | None = None

    def message(self, number: int, line: bytes, max_message_bytes: int) -> Outgoing | None:
        """Return the message of a line; None for an empty line between JSON lines.

        Raises:
            InvalidInputError: If the line is not what was wanted.
        """
        if self.raw or self.whole:
            return Outgoing(line, self.key, self.headers, partition=self.partition)
        value = _parsed(number, line)
        if value is _NOTHING:
            return None
        # The producer would refuse these too, but can't name the line; and few lines make it worth encoding twice.
        if b"\\u" in line or 2 * len(line) > max_message_bytes:
            _check_encoded(number, value, max_message_bytes)
        key = self.key if self.key_field is None else self._key(number, value, self.key_field)
        return Outgoing(value, key, self.headers, partition=self.partition)

    def _key(self, number: int, value: object, name: str) -> str | None:
        key = _key(number, value, name)
        if key is None and self.require_key:
            raise InvalidInputError(f"line {number}: found no key in the field {name!r}, and --require-key wants one")
        return key


@dataclass(slots=True)
class Batch:
    """Lines that are published in one transaction."""

    first_line: int = 0
    last_line: int = 0
    payload_bytes: int = 0
    keyless_lines: list[int] = field(default_factory=list)
    messages: list[Outgoing] = field(default_factory=list)


@dataclass(slots=True)
class Summary:
    """What was published; per partition the count, the first and the last offset."""

    topic: str
    started_s: float
    count: int = 0
    batch_count: int = 0
    # Objects that had not the field of the key.
    keyless_count: int = 0
    first_keyless_line: int = 0
    elapsed_s: float = 0.0
    partitions: dict[int, list[int]] = field(default_factory=dict)

    def add(self, partition: int, offset: int) -> None:
        self.count += 1
        entry = self.partitions.setdefault(partition, [0, offset, offset])
        entry[0] += 1
        entry[1] = min(entry[1], offset)
        entry[2] = max(entry[2], offset)

    def keyless(self, numbers: list[int]) -> None:
        if numbers:
            self.first_keyless_line = self.first_keyless_line or numbers[0]
            self.keyless_count += len(numbers)

    def facts(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "published": self.count,
            "batches": self.batch_count,
            "without_key_field": self.keyless_count,
            "elapsed_s": round(self.elapsed_s, 3),
            "partitions": [
                {"partition": partition, "published": count, "first_offset": first, "last_offset": last}
                for partition, (count, first, last) in sorted(self.partitions.items())
            ],
        }

    def text(self) -> str:
        rate = f", {self.count / self.elapsed_s:,.0f}/s" if self.elapsed_s >= 1 else ""
        return (
            f"published {self.count} {'message' if self.count == 1 else 'messages'} to {self.topic} in "
            f"{len(self.partitions)} partitions, {self.elapsed_s:.1f} s{rate}"
        )


@contextmanager
def opened(file: str) -> Iterator[IO[bytes]]:
    """Open the input; a name ending in .gz is unpacked, - is standard input."""
    if file == "-":
        assert sys.stdin is not None  # see main
        stream = sys.stdin.buffer
        if stream.isatty():
            click.echo("reading messages from the terminal; end with Ctrl-D", err=True)
        yield stream
        return
    try:
        with _open(file) as opened_file:
            yield opened_file
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InvalidInputError(f"{file} is not a whole gzip file: {error}") from error


def _open(file: str) -> IO[bytes]:
    # Unbuffered: _Source reads large chunks itself, and select has to see all that was not read.
    return cast("IO[bytes]", gzip.open(file)) if file.endswith(".gz") else Path(file).open("rb", buffering=0)


def publish(app: "Coordinator", topic: str, stream: IO[bytes], form: Form, *, batch_size: int) -> Summary:
    """Publish what the stream holds; an error says how far it came."""
    # Asked first: it also ends the command before anything is read where there is no such topic.
    max_message_bytes = app.topic(topic).max_message_bytes
    summary = Summary(topic, time.monotonic())
    batch = Batch()
    try:
        for batch in batches(stream, form, batch_size=batch_size, max_message_bytes=max_message_bytes):
            for place in app.publish_many(topic, batch.messages):
                assert isinstance(place, Published)  # none of them was given a time
                summary.add(place.partition, place.offset)
            summary.batch_count += 1
            summary.keyless(batch.keyless_lines)
            batch = Batch()  # noqa: PLW2901 - what an error says of an unsent batch must not be said of a sent one
    except CoordinatorError as error:
        error.detail = "; ".join(filter(None, [error.detail, _progress(summary, batch, error)]))
        raise
    except (KeyboardInterrupt, OSError, EOFError, zlib.error):
        click.echo(_progress(summary, batch, None), err=True)
        raise
    summary.elapsed_s = time.monotonic() - summary.started_s
    return summary


def batches(stream: IO[bytes], form: Form, *, batch_size: int, max_message_bytes: int) -> Iterator[Batch]:
    """Yield batches of messages; a line that is not what was wanted raises before its batch is yielded."""
    batch = Batch()
    for number, line in enumerate_lines(stream, form, max_message_bytes):
        message = None if line is None else form.message(number, line, max_message_bytes)
        if line is not None and message is not None:
            batch.first_line = batch.first_line or number
            batch.last_line = number
            batch.payload_bytes += len(line)
            batch.messages.append(message)
            if form.key_field is not None and isinstance(message.value, dict) and form.key_field not in message.value:
                batch.keyless_lines.append(number)
        full = len(batch.messages) >= batch_size or batch.payload_bytes >= _MAX_BATCH_BYTES
        if batch.messages and (full or line is None):
            yield batch
            batch = Batch()
    if batch.messages:
        yield batch


def enumerate_lines(stream: IO[bytes], form: Form, max_message_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    """Yield lines with their numbers, counted from 1; None where no more input comes for a moment."""
    if form.whole:
        content = stream.read(max_message_bytes + 1)
        while 0 < len(content) <= max_message_bytes and (more := stream.read(max_message_bytes + 1 - len(content))):
            content += more  # an unbuffered file gives what it has
        if len(content) > max_message_bytes:
            raise InvalidInputError(f"the input has more than {max_message_bytes} bytes, the most this topic takes")
        yield 1, content
        return
    limit = max_message_bytes if form.raw else max_message_bytes * _LINE_BYTES_PER_PAYLOAD_BYTE
    number = 0
    for line in lines(stream, limit):
        if line is not None:
            number += 1
        yield number, line


def lines(stream: IO[bytes], max_line_bytes: int) -> Iterator[bytes | None]:
    """Yield lines without their LF; None where no more input comes for a moment.

    The stream's own readline would wait for the next line while a batch waits to be sent.
    """
    number = 1
    parts: list[bytes] = []
    size = 0
    source = _Source(stream)
    while True:
        if not source.ready():
            yield None
        chunk = source.read()
        first, *others = chunk.split(b"\n")
        parts.append(first)
        size += len(first)
        for other in others:
            yield _joined(number, parts, size, max_line_bytes)
            number += 1
            parts, size = [other], len(other)
        if size > max_line_bytes:
            _joined(number, parts, size, max_line_bytes)
        if not chunk:
            break
    # A file that ends in LF has no line after it.
    if size:
        yield _joined(number, parts, size, max_line_bytes)


class _Source:
    """Reads what is there; `ready` says whether a read would return at once."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._read = getattr(stream, "read1", stream.read)
        self._descriptor = _waiting_descriptor(stream)

    def ready(self) -> bool:
        return self._descriptor is None or bool(select.select([self._descriptor], [], [], _IDLE_S)[0])

    def read(self) -> bytes:
        # read1 with a size above the buffer's leaves nothing in the buffer, where select would not see it.
        chunk: bytes = self._read(_CHUNK_BYTES)
        return chunk


def _waiting_descriptor(stream: IO[bytes]) -> int | None:
    """Return the descriptor of a pipe, socket or terminal; None for what never makes a reader wait."""
    try:
        descriptor = stream.fileno()
        return None if stat.S_ISREG(os.fstat(descriptor).st_mode) else descriptor
    except OSError:  # a test's stream has none
        return None


def _joined(number: int, parts: list[bytes], size: int, max_line_bytes: int) -> bytes:
    if size > max_line_bytes:
        raise InvalidInputError(
            f"line {number}: found more than {max_line_bytes} bytes, the most that this topic takes"
        )
    return b"".join(parts)


_NOTHING = object()


def _parsed(number: int, line: bytes) -> object:
    try:
        # Decoded here: json.loads takes bytes for UTF-16 when it sees NULs.
        text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        return _JSON.decode(text) if text else _NOTHING
    except (ValueError, RecursionError) as error:
        found = repr(line[:_SHOWN_CHARS].decode("utf-8", "backslashreplace"))
        more = "..." if len(line) > _SHOWN_CHARS else ""
        raise InvalidInputError(f"line {number}: found {found}{more}, wanted one JSON value ({error})") from error


def _check_encoded(number: int, value: object, max_message_bytes: int) -> None:
    try:
        size = len(json_encode(value))
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"line {number}: found a value that has no JSON form in UTF-8 ({error})") from error
    if size > max_message_bytes:
        raise InvalidInputError(
            f"line {number}: found a message of {size} bytes, wanted at most the {max_message_bytes} of this topic"
        )


def _key(number: int, value: object, name: str) -> str | None:
    if not isinstance(value, dict):
        raise InvalidInputError(
            f"line {number}: found {_kind(value)}, wanted a JSON object whose field {name!r} is the key"
        )
    key = value.get(name)
    if key is None:
        return None
    if isinstance(key, bool) or not isinstance(key, (str, int, float)):
        raise InvalidInputError(f"line {number}: found {_kind(key)} in the field {name!r}, wanted a string or a number")
    text = key if isinstance(key, str) else json.dumps(key)
    if "\0" in text:
        raise InvalidInputError(f"line {number}: found the key {text!r}, wanted a text without NUL")
    if len(text.encode()) > MAX_KEY_BYTES:
        raise InvalidInputError(
            f"line {number}: found a key of {len(text)} characters, wanted {MAX_KEY_BYTES} bytes at most"
        )
    return text


def _kind(value: object) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _progress(summary: Summary, batch: Batch, error: CoordinatorError | None) -> str:
    before = f"{summary.count} {'message was' if summary.count == 1 else 'messages were'} published before"
    if not batch.messages:
        return before
    first, last = batch.first_line, batch.last_line
    of = f"line {first}" if first == last else f"lines {first} to {last}"
    if error is None or isinstance(error, UnavailableError):
        # The COMMIT may have arrived, and only its answer not.
        return f"{before}; whether anything of {of} was is not known"
    return f"{before}; nothing of {of} was"


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text} is too large")
    return value


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# Without NaN and Infinity, which Python alone takes for JSON, and which it makes of a number like 1e999.
_JSON = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse)
