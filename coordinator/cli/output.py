"""What commands print: data on standard output (tables for people, JSON for programs), all else on standard error."""

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import click

from coordinator.cli.commands import FiniteRange

# In a table, what is not known.
UNKNOWN = "-"

# On a narrow terminal a column of texts is folded down to this, or to its heading.
_LEAST_TEXT_WIDTH = 12


def line(text: str) -> None:
    """Print one line of data."""
    click.echo(text)


def note(text: str) -> None:
    """Print what is no data: on standard error."""
    click.echo(text, err=True)


def json_object(value: Mapping[str, Any]) -> None:
    """Print one JSON object on one line, as UTF-8 whatever the locale says."""
    out = sys.stdout.buffer
    # A lone surrogate, which JSON may carry and UTF-8 may not, becomes an escape again.
    text = json.dumps(value, default=plain, ensure_ascii=False)
    out.write(text.encode("utf-8", "backslashreplace") + b"\n")
    out.flush()


def plain(value: object) -> Any:
    """Turn what the API returns into what JSON has."""
    if isinstance(value, datetime):
        return timestamp(value)
    if isinstance(value, UUID):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        # One level: what is in it comes here in its turn.
        return {field.name: getattr(value, field.name) for field in fields(value)}
    raise TypeError(f"no JSON for {type(value).__name__}")


def timestamp(value: datetime) -> str:
    """ISO 8601 in UTC with microseconds: as text it sorts by time."""
    return value.astimezone(UTC).isoformat(timespec="microseconds")


def cell(value: object) -> str:
    """Return what a table says for a value: nothing in it can move the cursor or break the line."""
    if value is None:
        return UNKNOWN
    if value == "":
        return '""'  # a key can be empty, which is not the same as none
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    if isinstance(value, (tuple, list)):
        return ",".join(map(cell, value)) or UNKNOWN
    text = str(value)
    return text if text.isprintable() else "".join(char if char.isprintable() else _escape(char) for char in text)


def duration(seconds: float | None) -> str:
    """Return a time span for people, in its two largest units."""
    if seconds is None:
        return UNKNOWN
    left = max(round(seconds), 0)
    parts: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or (unit == "s" and not parts):
            parts.append(f"{count}{unit}")
        elif parts:
            break
    return "".join(parts[:2])


def counted(number: int, noun: str) -> str:
    """Return "1 problem", "2 problems"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table; numbers stand on the right.

    A terminal gets it wrapped to its width. Anything else gets each row on one line, whole, and two spaces between
    columns: what cut, awk and a reader of logs can work with.
    """
    numeric = [_is_numeric([row[index] for row in rows]) for index in range(len(columns))]
    cells = [[cell(value) for value in row] for row in rows]
    if sys.stdout.isatty():
        _rich_table(columns, cells, numeric)
        return
    widths = [max(len(row[index]) for row in [columns, *cells]) for index in range(len(columns))]
    padded = [
        [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, numeric, strict=True)
        ]
        for row in [columns, *cells]
    ]
    line("\n".join("  ".join(row).rstrip() for row in padded))


def history(errors: Sequence[Mapping[str, Any]]) -> None:
    """Print the failures of a message, with their tracebacks."""
    for error in errors:
        line("")
        line(f"attempt {error.get('attempt', UNKNOWN)}: {cell(error.get('error'))}")
        for text in str(error.get("traceback", "")).splitlines():
            line(f"    {cell(text)}")


def watch(show: Callable[[], None], pause_s: float | None) -> None:
    """Show once; with a pause again and again until Ctrl-C, on a cleared screen where there is one.

    Not a terminal gets one answer below the other: for a log, or for a program that reads lines.
    """
    show()
    # Ctrl-C is how this ends: no failure.
    with suppress(KeyboardInterrupt):
        while pause_s is not None:
            sys.stdout.flush()
            time.sleep(pause_s)
            if sys.stdout.isatty():
                click.clear()
            show()


watch_option = click.option(
    "--watch",
    "watch_s",
    type=FiniteRange(min=0.1),
    metavar="SECONDS",
    help="Show it again and again with this pause, until Ctrl-C.",
)


def _rich_table(columns: Sequence[str], cells: Sequence[Sequence[str]], numeric: Sequence[bool]) -> None:
    from rich.cells import cell_len  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415 - 50 ms, and only a terminal needs it
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console(highlight=False)
    # NO_COLOR takes rich's colours away, and leaves its bold.
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="none" if console.no_color else "bold")
    needed = 0
    for index, (name, right) in enumerate(zip(columns, numeric, strict=True)):
        longest = max(cell_len(row[index]) for row in [columns, *cells])
        least = longest if right else max(len(name), min(longest, _LEAST_TEXT_WIDTH))
        needed += least + 2
        grid.add_column(name, justify="right" if right else "left", overflow="fold", min_width=least)
    for row in cells:
        # Text: a plain str would be read as markup, and a topic may be called [red].
        grid.add_row(*map(Text, row))
    # Texts are folded before numbers and headings; a terminal narrower than even that wraps the lines itself.
    console.width = max(console.width, needed)
    console.print(grid, crop=False, soft_wrap=False)


def _is_numeric(values: Sequence[object]) -> bool:
    known = [value for value in values if value is not None]
    return bool(known) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in known)


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
