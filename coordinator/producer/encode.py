"""What a caller publishes, checked and turned into arrays before any SQL."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias
from uuid import UUID

from coordinator.db import arrays
from coordinator.errors import ConfigError, InvalidInputError, MessageTooLargeError
from coordinator.model import BYTES_CONTENT, CORRELATION_HEADER, TRACE_HEADER, Outgoing
from coordinator.protocol.check import flag, text
from coordinator.protocol.messages import PUBLISH_MANY, PUBLISH_SELECTED, PublishCall
from coordinator.protocol.topics import MAX_PARTITIONS

MAX_KEY_BYTES = 1024
MAX_HEADERS_BYTES = 16384
MAX_DEDUP_KEY_BYTES = 1024
MAX_DELAY_S = 100 * 366 * 86400.0
# Of times; the last one that there is in every time zone.
_LAST_YEAR = 9998

# What happens to a message whose dedup key was used within the window.
OnDuplicate: TypeAlias = Literal["return", "raise"]
# The messages' places in their batch; None for a single one.
_Places: TypeAlias = Sequence[int | None]


@dataclass(frozen=True, slots=True)
class Codec:
    """How values become payloads and back. The default is JSON; bytes pass through unchanged."""

    encode: Any
    decode: Any
    content_type: str | None = None


def json_encode(value: object) -> bytes:
    """Encode as compact JSON in UTF-8.

    Raises:
        ValueError, TypeError: If the value has no JSON form: NaN, lone surrogates, a type JSON does not know.
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


JSON = Codec(encode=json_encode, decode=json.loads)


def publish_call(
    topic: str,
    messages: Sequence[Outgoing],
    *,
    wake: bool,
    codec: Codec,
    limit_bytes: int | None,
    on_duplicate: OnDuplicate = "return",
) -> PublishCall:
    """Return a publish as statement and parameters.

    Raises:
        ConfigError: If on_duplicate is not one of the two words.
        InvalidInputError: If a message cannot be stored as it is; names its place in the batch.
    """
    if on_duplicate not in ("return", "raise"):
        raise ConfigError(f"on_duplicate is 'return' or 'raise', found {on_duplicate!r}")
    # A message that was published alone has no place that its publisher would know of.
    places = range(len(messages)) if len(messages) > 1 else (None,)
    payloads: list[bytes] = []
    content_types: list[str | None] = []
    for place, message in zip(places, messages, strict=False):
        value = message.value
        if isinstance(value, bytes):
            payloads.append(value)
            content_types.append(BYTES_CONTENT)
        elif isinstance(value, bytearray | memoryview):
            payloads.append(bytes(value))
            content_types.append(BYTES_CONTENT)
        else:
            payloads.append(_encoded(value, codec, place))
            content_types.append(codec.content_type)
    if limit_bytes is not None:
        _check_sizes(payloads, limit_bytes, places)
    keys = [message.key for message in messages]
    headers = [_headers(message, place) for place, message in zip(places, messages, strict=False)]
    ids = [_uuid(message.message_id, place) for place, message in zip(places, messages, strict=False)]
    partitions = [message.partition for message in messages]
    for place, key in zip(places, keys, strict=False):
        if key is not None:
            _check_text(key, "key", place, MAX_KEY_BYTES)
    for place, partition in zip(places, partitions, strict=False):
        if partition is None:
            continue
        # True and "1" are no partitions, though the one is an int and the other reads like one.
        if not isinstance(partition, int) or isinstance(partition, bool) or not 0 <= partition < MAX_PARTITIONS:  # type: ignore[redundant-expr]
            raise InvalidInputError(
                f"{_at(place)}partition {partition!r} is none of a topic's 0 to {MAX_PARTITIONS - 1}"
            )
    plain = (
        topic,
        arrays.bytea_array(payloads),
        _unless_empty(keys, arrays.text_array),
        _unless_empty(headers, arrays.text_array),
        arrays.uuid_array(ids) if any(item is not None for item in ids) else None,
        _unless_empty(content_types, arrays.text_array),
        arrays.int_array(partitions) if any(item is not None for item in partitions) else None,
        wake,
    )
    # An id may count as a dedup key: whether it does is for the topic to say.
    if plain[4] is None and all(
        message.dedup_key is None and message.delay_s is None and message.deliver_at is None for message in messages
    ):
        return PublishCall(PUBLISH_MANY, plain)
    dedup_keys = _unless_empty(_dedup_keys(messages, places), arrays.text_array)
    return PublishCall(PUBLISH_SELECTED, (*plain, dedup_keys, on_duplicate, *_times(messages, places)))


def outgoing(topic: str, items: Iterable[Outgoing | object], *, wake: bool) -> list[Outgoing]:
    """Wrap bare values, once it is sure that the topic's name and `wake` are what they have to be.

    Raises:
        InvalidInputError: Also what is meant as one message, and would be taken for one of each of its letters or keys.
    """
    text("topic", topic)
    flag("wake", wake)
    if isinstance(items, str | bytes | bytearray | memoryview | Mapping):
        raise InvalidInputError(
            f"messages: found one {type(items).__name__}, wanted a list of messages; publish() takes a single one"
        )
    if not isinstance(items, Iterable):
        raise InvalidInputError(f"messages: wanted a list of messages, found {type(items).__name__}")
    return [item if isinstance(item, Outgoing) else Outgoing(item) for item in items]


def new_trace_parent() -> str:
    """Return a fresh W3C traceparent, sampled."""
    return f"00-{os.urandom(16).hex()}-{os.urandom(8).hex()}-01"


def _dedup_keys(messages: Sequence[Outgoing], places: _Places) -> list[str | None]:
    keys = [message.dedup_key for message in messages]
    for place, key in zip(places, keys, strict=False):
        if key is not None:
            _check_text(key, "dedup key", place, MAX_DEDUP_KEY_BYTES)
    return keys


def _times(
    messages: Sequence[Outgoing], places: _Places
) -> tuple[list[float | None] | None, list[datetime | None] | None]:
    delays: list[float | None] | None = None
    times: list[datetime | None] | None = None
    for place, message in zip(places, messages, strict=False):
        if message.delay_s is not None:
            delays = delays or [None] * len(messages)
            delays[place or 0] = _delay(message, place)
        if message.deliver_at is not None:
            times = times or [None] * len(messages)
            times[place or 0] = _time(message.deliver_at, place)
    return delays, times


def _delay(message: Outgoing, place: int | None) -> float:
    delay_s: Any = message.delay_s
    if message.deliver_at is not None:
        raise InvalidInputError(f"{_at(place)}wanted delay_s or deliver_at, found both")
    if isinstance(delay_s, bool) or not isinstance(delay_s, int | float) or not 0 <= delay_s <= MAX_DELAY_S:
        raise InvalidInputError(f"{_at(place)}delay_s is between 0 and {MAX_DELAY_S:g}, found {delay_s!r}")
    return float(delay_s)


def _time(time: Any, place: int | None) -> datetime:
    # A time without an offset would mean another moment on every machine.
    if not isinstance(time, datetime) or time.utcoffset() is None:
        raise InvalidInputError(f"{_at(place)}deliver_at is a datetime with a time zone, found {time!r}")
    try:
        utc = time.astimezone(UTC)
    except OverflowError as error:
        raise InvalidInputError(f"{_at(place)}deliver_at {time!r} has no form in UTC") from error
    if utc.year > _LAST_YEAR:
        raise InvalidInputError(f"{_at(place)}deliver_at is before the year {_LAST_YEAR + 1}, found {time!r}")
    return utc


def _unless_empty(items: Sequence[str | None], encode: Any) -> object:
    return encode(items) if any(item is not None for item in items) else None


def _encoded(value: object, codec: Codec, place: int | None) -> bytes:
    try:
        payload = codec.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(f"{_at(place)}the value cannot be encoded: {error}") from error
    if not isinstance(payload, bytes):
        raise InvalidInputError(f"{_at(place)}the codec returned {type(payload).__name__}, wanted bytes")
    return payload


def _check_sizes(payloads: Sequence[bytes], limit_bytes: int, places: _Places) -> None:
    for place, payload in zip(places, payloads, strict=False):
        if len(payload) > limit_bytes:
            raise MessageTooLargeError(
                f"{_at(place)}a payload of {len(payload)} bytes is over the topic's limit of {limit_bytes} bytes"
            )


def _at(place: int | None) -> str:
    return "" if place is None else f"message {place}: "


def _headers(message: Outgoing, place: int | None) -> str | None:
    if message.headers is None and message.correlation_id is None and message.traceparent is None:
        return None
    given: Mapping[str, Any] = message.headers if message.headers is not None else {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):  # type: ignore[redundant-expr]
        raise InvalidInputError(f"{_at(place)}headers are a mapping from str, found {given!r}")
    merged = dict(given)
    for name, value in (("correlation_id", message.correlation_id), ("traceparent", message.traceparent)):
        if value is not None and not isinstance(value, str):
            raise InvalidInputError(f"{_at(place)}the {name} is {type(value).__name__}, wanted str")
    if message.correlation_id is not None:
        merged[CORRELATION_HEADER] = message.correlation_id
    if message.traceparent is not None:
        merged[TRACE_HEADER] = message.traceparent
    try:
        encoded = json.dumps(merged, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(f"{_at(place)}the headers cannot be encoded: {error}") from error
    if "\\u0000" in encoded:
        raise InvalidInputError(f"{_at(place)}the headers hold a NUL, which PostgreSQL cannot store in jsonb")
    _check_text(encoded, "headers", place, MAX_HEADERS_BYTES)
    return encoded


def _check_text(value: object, what: str, place: int | None, max_bytes: int) -> None:
    if not isinstance(value, str):
        raise InvalidInputError(f"{_at(place)}the {what} is {type(value).__name__}, wanted str")
    if "\0" in value:
        raise InvalidInputError(f"{_at(place)}the {what} holds a NUL, which PostgreSQL cannot store in a text")
    try:
        length = len(value.encode())
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"{_at(place)}the {what} holds a lone surrogate, which has no UTF-8 form") from error
    if length > max_bytes:
        raise InvalidInputError(f"{_at(place)}the {what} has {length} bytes, at most {max_bytes} are allowed")


def _uuid(value: UUID | str | None, place: int | None) -> UUID | None:
    if value is None or isinstance(value, UUID):
        return value
    try:
        return UUID(value)
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidInputError(f"{_at(place)}message_id {value!r} is no UUID") from error
