"""Tables and JSON."""

import fcntl
import json
import os
import pty
import struct
import termios
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

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


@pytest.mark.parametrize("columns", [20, 200])
@pytest.mark.parametrize("no_color", [True, False])
def test_table__terminal__is_complete_and_styled_only_where_wanted(
    start: Any, monkeypatch: pytest.MonkeyPatch, columns: int, no_color: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("COLUMNS", raising=False)
    if not no_color:
        monkeypatch.delenv("NO_COLOR")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    process = start("config", "show", "--dsn", "postgresql://db.example/shop", stdout=theirs)
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 4096):
            shown += chunk
    except OSError:  # how Linux tells the end of a terminal
        pass
    os.close(ours)
    assert process.wait(60) == 0
    for word in (b"SETTING", b"VALUE", b"SOURCE", b"10.0"):
        assert word in shown
    assert (b"\x1b[" in shown) is not no_color
