"""Log lines for people and for programs. What users' code says is never in them: it may quote a payload or a key."""

import json
import logging
import sys
import traceback
from collections.abc import Mapping, MutableMapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal, TextIO

from coordinator.observe.events import MEANINGS

Format = Literal["text", "json"]
FORMATS: tuple[Format, ...] = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")

# What every record has; all else are fields of the event.
_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "event"}
_MAX_FIELD_CHARS = 500
_MAX_FRAMES = 20


class Told(str):
    """An event's name which, as the message of a record, also says what it means and its fields.

    An application that has set up no logging, or a format with nothing but `%(message)s`, shows only the message.
    """

    __slots__ = ("fields",)
    fields: Mapping[str, object]

    def __str__(self) -> str:
        name = str.__str__(self)
        meaning, words = MEANINGS.get(name), _words(self.fields)
        text = name + (f": {meaning}" if meaning else "") + (f" ({words})" if words else "")
        return _printable(" ".join(text.split()))


class EventLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger for events: `log.warning(events.X, extra={...})`; the record's `event` is the name."""

    def process(self, msg: str, kwargs: MutableMapping[str, Any]) -> tuple[str, MutableMapping[str, Any]]:
        told = Told(msg)
        told.fields = kwargs.get("extra") or {}
        return told, {**kwargs, "extra": {**told.fields, "event": msg}}


def logger(name: str = "coordinator") -> EventLogger:
    return EventLogger(logging.getLogger(name), None)


class TextFormatter(logging.Formatter):
    """`warning: connection.lost failures=2`, on one line; with times and stacks where they were asked for."""

    def __init__(self, *, tracebacks: bool, times: bool = False) -> None:
        super().__init__()
        self._tracebacks = tracebacks
        self._times = times

    def format(self, record: logging.LogRecord) -> str:
        words = [f"{record.levelname.lower()}:", event_of(record), _words(fields_of(record))]
        if self._times:
            words.insert(0, time_of(record))
        # libpq's messages have several lines, indented.
        text = _printable(" ".join(" ".join(words).split()))
        if record.exc_info and self._tracebacks:
            text += "\n" + stack_of(record.exc_info[2], record.exc_info[1])
        return text


class JsonFormatter(logging.Formatter):
    """One object a line: at, level, event, logger, and the event's fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": time_of(record),
            "level": record.levelname.lower(),
            "event": event_of(record),
            "logger": record.name,
            **fields_of(record),
        }
        if record.exc_info:
            line["stack"] = stack_of(record.exc_info[2], record.exc_info[1])
        return json.dumps(line, default=str)


def event_of(record: logging.LogRecord) -> str:
    """Return the event's name; of a record that is none of ours its message."""
    return str(getattr(record, "event", None) or record.getMessage())


def time_of(record: logging.LogRecord) -> str:
    """When it was logged, in UTC, as 2030-01-31T12:00:00.123Z."""
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the facts of an event; of an exception its class, and where it was raised."""
    fields = {name: _cut(value) for name, value in vars(record).items() if name not in _PLAIN}
    if record.exc_info and record.exc_info[1] is not None:
        fields.setdefault("error", kind_of(record.exc_info[1]))
        fields.setdefault("raised_at", _raised_at(record.exc_info[2]))
    return fields


def said(error: BaseException) -> str:
    """Return what may be logged of an exception that a statement of ours has met.

    Of what the database says the first line: behind it are rows ("Failing row contains ...").
    """
    diagnosis = getattr(error, "diag", None)
    if diagnosis is None:
        return kind_of(error)
    return _one_line(f"{type(error).__name__}: {getattr(diagnosis, 'message_primary', None) or error}")


def kind_of(error: BaseException) -> str:
    """Return what may be logged of an exception that may be users': its class, because its text may quote a message.

    What we raise ourselves is told whole.
    """
    name = type(error).__name__
    sqlstate = getattr(error, "sqlstate", None)
    if sqlstate is not None:
        return f"{name} {sqlstate}"
    if type(error).__module__.startswith("coordinator.") and name not in _QUOTING:
        return _one_line(f"{name}: {error}")
    return name


# Ours, with texts of users in them.
_QUOTING = frozenset({"HandlerError", "Retry", "Reject", "DuplicateError", "InvalidInputError"})


def stack_of(trace: TracebackType | None, error: BaseException | None) -> str:
    """Return a stack without what the exception says; the frames nearest to where it was raised."""
    frames = traceback.extract_tb(trace)[-_MAX_FRAMES:]
    lines = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
    return "\n".join([*(f"  {line}" for line in lines), "" if error is None else kind_of(error)]).rstrip()


def show(log_format: Format, level: str, stream: TextIO | None = None) -> None:
    """Send the package's events to a stream; a later call replaces an earlier one.

    Args:
        level: debug, info, warning or error.
        stream: Standard error by default.
    """
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter(tracebacks=True, times=True))
    logger = logging.getLogger("coordinator")
    logger.setLevel(level.upper())
    logger.handlers = [handler]
    logger.propagate = False


def _printable(text: str) -> str:
    """Escape what a terminal would obey, such as ESC: names and texts in a line may be anybody's."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _raised_at(trace: TracebackType | None) -> str | None:
    frames = traceback.extract_tb(trace)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None


def _cut(value: object) -> object:
    text = value if isinstance(value, str) else None
    return value if text is None or len(text) <= _MAX_FIELD_CHARS else f"{text[:_MAX_FIELD_CHARS]}..."


def _words(fields: Mapping[str, object]) -> str:
    return " ".join(f"{name}={value}" for name, value in fields.items())


def _one_line(text: str) -> str:
    return str(_cut(" ".join(text.split("\n", 1)[0].split())))
