"""Tables and JSON."""

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest

from coordinator.cli import output


def test_table__no_terminal__pads_with_two_spaces_and_cuts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(("NAME", "COUNT"), [("x" * 300, 7), ("y", 12345), ("z", None)])
    header, first, second, third = capsys.readouterr().out.splitlines()
    assert header == "NAME" + " " * 296 + "  COUNT"
    assert first == "x" * 300 + "      7"
    assert second.split() == ["y", "12345"]
    assert third.split() == ["z", "-"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        ("", '""'),
        (True, "yes"),
        (("a", "b"), "a,b"),
        ((), "-"),
        ("a\nb\x1b[31m", "a\\nb\\x1b[31m"),
        ("schön", "schön"),
        (datetime(2030, 1, 31, 13, tzinfo=timezone(timedelta(hours=1))), "2030-01-31 12:00:00Z"),
    ],
)
def test_cell__any_value__stays_on_its_line(value: object, shown: str) -> None:
    assert output.cell(value) == shown


def test_json_object__large_numbers_and_odd_text__are_exact(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    value = {"offset": 2**63 - 1, "text": "ü\ud800", "at": datetime(2030, 1, 31, 12, tzinfo=UTC)}
    output.json_object(value)
    found = json.loads(capfdbinary.readouterr().out)
    assert found == {**value, "at": "2030-01-31T12:00:00.000000+00:00"}
