"""Every command there is, found by walking the tree: help, and what happens to each when something is wrong.

Arguments are made up from what a command says it takes, so that a new command is tested as soon as it exists.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import click
import psycopg
import pytest
from support.tree import GROUPS, LEAVES

from coordinator.cli.main import COMMANDS

NOBODY = "postgresql://127.0.0.1:1/nobody"
NO_MEMBER = "00000000-0000-4000-8000-000000000000"


IDS = [" ".join(path) for path in LEAVES]

# Need no database, or make one of their own.
LOCAL = {
    ("db", "sql"),
    ("config", "show"),
    ("db", "sql"),
    ("config", "check"),
    ("metrics", "rules"),
    ("metrics", "dashboard"),
    ("demo",),
}
# Have tests of their own for this: they run programs, ports and measurements.
APART = {("run",), ("serve",), ("bench", "scaling"), ("bench", "fanout"), ("demo",), ("maintain",)}
# What cannot be made up.
GIVEN = {
    ("groups", "seek"): ("missing", "--to-earliest"),
    ("topics", "alter"): ("missing", "--wake"),
    ("topics", "add-partitions"): ("missing", "--partitions", "2"),
    ("sql", "query"): ("who-is-behind",),
    ("messages", "consume"): ("missing", "--group", "missing", "--exit-at-end"),
    ("db", "downgrade"): ("base", "--yes"),
}
WITH_DATABASE = [path for path in LEAVES if path not in LOCAL | APART]


def made_up(path: tuple[str, ...], text: str = "missing", number: int | None = None) -> list[str]:
    """Arguments and required options, by their types."""
    if path in GIVEN and text == "missing" and number is None:
        return list(GIVEN[path])
    words: list[str] = []
    options: list[str] = []
    for parameter in LEAVES[path].params:
        value = _value(parameter.type, text, number)
        if isinstance(parameter, click.Argument):
            if parameter.required or text != "missing":
                words.append(value)
        elif parameter.required:
            options += [parameter.opts[0], value]
        elif parameter.name == "yes":
            options.append("--yes")
    return options + words


def _value(kind: click.ParamType, text: str, number: int | None) -> str:
    if isinstance(kind, click.Path | click.File):
        return os.devnull
    if isinstance(kind, click.Choice):
        return str(kind.choices[0])
    if kind.name == "uuid":
        return NO_MEMBER
    if kind.name.startswith(("integer", "float")):
        low = getattr(kind, "min", None) or 0
        return str(low if number is None else number)
    return text


def test_tree__every_group_of_the_list__is_walked() -> None:
    assert {path[0] for path in LEAVES} == set(COMMANDS)
    assert len(LEAVES) >= 25


@pytest.mark.parametrize("path", LEAVES, ids=IDS)
def test_help__of_each_command__has_examples_and_describes_every_option(call, path):
    ended = call(*path, "--help")
    assert (ended.code, ended.err) == (0, "")
    command = LEAVES[path]
    examples = ended.text.partition("Examples:")[2]
    assert f"coordinator {' '.join(path)}" in examples, "an example that calls it"
    assert len(command.get_short_help_str(200)) > 10
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{parameter.opts[0]} says nothing"


@pytest.mark.parametrize("path", GROUPS, ids=[" ".join(path) or "coordinator" for path in GROUPS])
def test_help__of_each_group__lists_its_commands(call, path):
    ended = call(*path, "--help")
    assert (ended.code, ended.err) == (0, "")
    for name in GROUPS[path].list_commands(click.Context(GROUPS[path])):
        assert f"\n  {name} " in ended.text


@pytest.mark.parametrize("path", LEAVES, ids=IDS)
def test_examples__of_each_command__are_calls_that_it_takes(path):
    """Parsed and not run: an example with an option that is gone is worse than none."""
    for example in LEAVES[path].examples:
        call = example.partition("coordinator ")[2]
        lexer = shlex.shlex(call, posix=True, punctuation_chars="|><;&")
        lexer.whitespace_split = True
        words = list(itertools.takewhile(lambda word: not word or word[0] not in "|><;&", lexer))
        if tuple(words[: len(path)]) != path:
            continue
        arguments = [
            "-" if "." in word and "/" not in word and word.endswith(("gz", "jpg", "jsonl")) else word
            for word in words[len(path) :]
        ]
        arguments = ["-" if word.endswith(".json") else word for word in arguments]
        LEAVES[path].make_context(path[-1], arguments)


@pytest.mark.parametrize("path", WITH_DATABASE, ids=" ".join)
def test_server__nobody_answers__is_unavailable(call, path):
    ended = call(*path, *made_up(path), "--dsn", NOBODY)
    assert (ended.code, ended.out) == (3, b""), ended.err
    assert ended.err.startswith("error: "), ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("path", WITH_DATABASE, ids=" ".join)
@pytest.mark.parametrize("dsn", ["nonsense", "postgresql://host:port/x", "host=a hots=b", "postgresql://\udcff/x"])
def test_dsn__wrong__is_usage_and_shows_no_password(call, path, dsn):
    ended = call(*path, *made_up(path), "--dsn", dsn)
    assert (ended.code, ended.out) in {(2, b""), (3, b"")}, ended.err
    assert "Traceback" not in ended.err
    assert "bug" not in ended.err


@pytest.mark.parametrize("path", WITH_DATABASE, ids=" ".join)
def test_database__none_named__names_the_ways(call, path):
    ended = call(*path, *made_up(path))
    assert (ended.code, ended.out) == (2, b""), ended.err
    for way in ("--dsn", "COORDINATOR_DSN", "DATABASE_URL", "PGHOST", "--embedded"):
        assert way in ended.err


@pytest.mark.parametrize("path", [path for path in WITH_DATABASE if path[0] != "db"], ids=" ".join)
def test_schema__not_installed__names_the_command(call, empty_dsn, path):
    ended = call(*path, *made_up(path), "--dsn", empty_dsn)
    assert ended.code == (1 if path == ("doctor",) else 2), ended.err
    assert "coordinator db upgrade" in ended.err + ended.text


@pytest.mark.parametrize("path", [path for path in WITH_DATABASE if path[0] != "db"], ids=" ".join)
def test_schema__of_another_protocol__says_what_to_upgrade(on, dsn, path):
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "create or replace function coordinator.protocol_version() returns int language sql immutable parallel safe "
            "as 'select 99'"
        )
    ended = on(*path, *made_up(path))
    assert ended.code == (1 if path == ("doctor",) else 2), ended.err
    assert "pg-coordinator" in ended.err + ended.text


NAMED = [
    path
    for path in WITH_DATABASE
    if path not in {("topics", "create"), ("sql", "query"), ("db", "upgrade"), ("db", "downgrade")}
    and any(isinstance(parameter, click.Argument) and parameter.required for parameter in LEAVES[path].params)
]


@pytest.mark.parametrize("path", NAMED, ids=" ".join)
@pytest.mark.parametrize("as_json", [False, True], ids=["table", "json"])
def test_name__unknown__is_told_on_standard_error(on, path, as_json):
    ended = on(*path, *made_up(path), *["--json"] * as_json)
    assert (ended.code, ended.out) == (2, b""), (ended.out, ended.err)
    assert "missing" in ended.err or NO_MEMBER in ended.err
    assert "Traceback" not in ended.err


TAKES_TEXT = [
    path
    for path in WITH_DATABASE
    if any(isinstance(parameter, click.Argument) and parameter.type.name == "text" for parameter in LEAVES[path].params)
]


@pytest.mark.parametrize("path", TAKES_TEXT, ids=" ".join)
@pytest.mark.parametrize("text", ["\udcff", "a\x00b"], ids=["no utf-8", "NUL"])
def test_argument__that_no_text_can_be__is_usage(on, path, text):
    ended = on(*path, *made_up(path, text=text))
    assert (ended.code, ended.out) == (2, b""), (ended.out, ended.err)
    assert "bug" not in ended.err
    assert "Traceback" not in ended.err


def numbers() -> list[tuple[tuple[str, ...], click.Parameter]]:
    return [
        (path, parameter)
        for path in WITH_DATABASE
        for parameter in LEAVES[path].params
        if parameter.type.name.startswith("integer")
    ]


@pytest.mark.parametrize(
    ("path", "parameter"), numbers(), ids=lambda item: " ".join(item) if isinstance(item, tuple) else item.name
)
@pytest.mark.parametrize("number", [2**31, 2**63, 10**30], ids=["2^31", "2^63", "10^30"])
def test_number__too_large__is_told_without_a_word_of_the_driver(on, path, parameter, number):
    on("topics", "create", "missing")
    if isinstance(parameter, click.Argument):
        words = made_up(path, number=number)
    else:
        words = [*made_up(path), f"{parameter.opts[0]}={number}"]
    ended = on(*path, *words)
    assert ended.code in {0, 1, 2, 4}, ended.err
    for word in ("Traceback", "bug", "the database says", "does not exist"):
        assert word not in ended.err, ended.err


@pytest.mark.parametrize(
    "arguments", [("--help",), ("topics", "--help"), ("topics", "list", "--help"), ("--version",)], ids=" ".join
)
def test_help__disk_full__is_an_error(start, arguments):
    with Path("/dev/full").open("wb") as full:
        process = start(*arguments, stdout=full)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 5
    assert err.startswith(b"error: ")
    assert b"Traceback" not in err
    assert b"Exception ignored" not in err


QUICK = [
    ("--help",),
    ("topics", "--help"),
    ("sql", "query"),
    ("config", "show", "--dsn", NOBODY),
    ("config", "show", "--dsn", NOBODY, "--json"),
]


@pytest.mark.parametrize("arguments", QUICK, ids=" ".join)
def test_pipe__reader_has_left__is_no_error(start, arguments):
    reader, writer = os.pipe()
    os.close(reader)
    process = start(*arguments, stdout=writer)
    os.close(writer)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"")


READS = [
    ("topics", "list"),
    ("groups", "list"),
    ("sql", "views"),
    ("sql", "query", "topics"),
    ("messages", "peek", "orders"),
    ("messages", "show", "orders", "0", "0"),
    ("db", "current"),
]


@pytest.mark.parametrize("arguments", READS, ids=" ".join)
def test_pipe__closed_under_a_command_with_a_database__is_no_error(start, dsn, on, arguments):
    on("topics", "create", "orders")
    on("messages", "publish", "orders", stdin=b"1\n")
    reader, writer = os.pipe()
    os.close(reader)
    process = start(*arguments, "--dsn", dsn, stdout=writer)
    os.close(writer)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"")


def test_interrupted__while_it_waits_for_a_lock__ends_at_once(start, dsn):
    """Ctrl-C while the server is busy for us: 130, and no traceback."""
    with psycopg.connect(dsn) as connection:
        connection.execute("lock coordinator.topics in access exclusive mode")
        process = start("topics", "list", "--dsn", dsn)
        with psycopg.connect(dsn, autocommit=True) as other:
            from support.shell import wait_until

            wait_until(lambda: other.execute("select from pg_locks where not granted").fetchall(), 30)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err.strip()) == (130, b"interrupted")


@pytest.mark.parametrize("no_color", [False, True])
def test_terminal__gets_bold_headings_and_no_colours_with_no_color(dsn, on, no_color, monkeypatch):
    import pty

    on("topics", "create", "orders")
    environment = {**os.environ, "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    if no_color:
        environment["NO_COLOR"] = "1"
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "coordinator.cli", "topics", "list", "--dsn", dsn],
        stdout=child,
        stderr=child,
        env=environment,
    )
    os.close(child)
    shown = b""
    with contextlib.suppress(OSError):  # Linux: the other end is closed
        while piece := os.read(parent, 4096):
            shown += piece
    os.close(parent)
    assert process.wait(60) == 0
    assert b"orders" in shown
    assert (b"\x1b[" in shown) is not no_color
