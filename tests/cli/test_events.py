"""Log events as people see them."""

import json
import logging

import pytest

from coordinator.cli.events import is_worth_a_line
from coordinator.observe.logs import JsonFormatter, TextFormatter


def record(name: str = "connection.lost", **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("coordinator", logging.WARNING, "file", 1, name, (), None)
    vars(made).update(fields)
    return made


def test_format__fields_with_line_breaks__are_one_line() -> None:
    text = TextFormatter(tracebacks=False).format(record(error="refused\n\tis it running?", failures=2))
    assert text == "warning: connection.lost error=refused is it running? failures=2"


def test_format__fields_with_control_characters__are_escaped_and_on_one_line() -> None:
    """A name of somebody's must neither colour an operator's terminal nor look like a line of ours."""
    text = TextFormatter(tracebacks=False).format(
        record(error="a\x1b[31mred\x07\r\nerror: forged \u202eb \x9bc \u00e9")
    )
    assert text.isprintable()
    assert "error=a\\x1b[31mred\\x07 error: forged \\u202eb \\x9bc \u00e9" in text


@pytest.mark.parametrize("tracebacks", [False, True])
def test_format__stack__is_shown_only_when_asked_for(tracebacks: bool) -> None:
    made = record("loop.failed")
    try:
        raise KeyError("ada")
    except KeyError as error:
        made.exc_info = (KeyError, error, error.__traceback__)
    text = TextFormatter(tracebacks=tracebacks).format(made)
    assert (f"{__file__}:" in text.partition("\n")[2]) is tracebacks
    assert text.startswith("warning: loop.failed error=KeyError raised_at=")
    assert "ada" not in text


def test_json__event_with_fields_and_an_exception__is_one_object_in_utc() -> None:
    made = record("handler.failed", topic="orders", offset=2**60)
    made.created = 0.25
    try:
        raise ValueError("of ada")
    except ValueError as error:
        made.exc_info = (ValueError, error, error.__traceback__)
    text = JsonFormatter().format(made)
    assert "\n" not in text
    line = json.loads(text)
    assert line["at"] == "1970-01-01T00:00:00.250Z"
    assert (line["level"], line["event"], line["offset"], line["error"]) == (
        "warning",
        "handler.failed",
        2**60,
        "ValueError",
    )
    assert "ada" not in text


def test_filter__repeated_failures__get_rarer() -> None:
    shown = [failures for failures in range(1, 100) if is_worth_a_line(record(failures=failures))]
    assert shown == [1, 2, 4, 8, 16, 32, 64]
    assert is_worth_a_line(record())
