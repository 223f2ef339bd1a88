"""Log events as people see them."""

import logging

import pytest

from coordinator.cli.events import EventFormatter, is_worth_a_line


def record(name: str = "connection.lost", **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("coordinator", logging.WARNING, "file", 1, name, (), None)
    vars(made).update(fields)
    return made


def test_format__fields_with_line_breaks__are_one_line() -> None:
    text = EventFormatter(tracebacks=False).format(record(error="refused\n\tis it running?", failures=2))
    assert text == "warning: connection.lost error=refused is it running? failures=2"


@pytest.mark.parametrize("tracebacks", [False, True])
def test_format__traceback__is_shown_only_when_asked_for(tracebacks: bool) -> None:
    made = record("loop.failed")
    try:
        raise KeyError("x")
    except KeyError as error:
        made.exc_info = (KeyError, error, error.__traceback__)
    text = EventFormatter(tracebacks=tracebacks).format(made)
    assert ("Traceback" in text) is tracebacks
    assert text.startswith("warning: loop.failed")


def test_filter__repeated_failures__get_rarer() -> None:
    shown = [failures for failures in range(1, 100) if is_worth_a_line(record(failures=failures))]
    assert shown == [1, 2, 4, 8, 16, 32, 64]
    assert is_worth_a_line(record())
