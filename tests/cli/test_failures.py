"""Exit codes and texts of what goes wrong."""

from pathlib import Path
from typing import Any

import psycopg
import pytest

from coordinator.cli import exits, failures
from coordinator.errors import (
    ConfigError,
    ConflictError,
    DeniedError,
    HandlerError,
    MessageTooLargeError,
    NotFoundError,
    SchemaVersionError,
    StaleEpochError,
    UnavailableError,
)

NOBODY = "postgresql://127.0.0.1:1/nobody"

WITH_DATABASE = [
    ("topics", "list"),
    ("topics", "create", "t"),
    ("topics", "describe", "t"),
    ("topics", "rotate", "t"),
    ("messages", "publish", "t"),
    ("messages", "peek", "t"),
    ("messages", "consume", "t", "--group", "g", "--exit-at-end"),
    ("groups", "list"),
    ("groups", "describe", "g"),
    ("db", "current"),
    ("db", "upgrade"),
    ("db", "downgrade", "base", "--yes"),
]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError(), 2),
        (SchemaVersionError(), 2),
        (NotFoundError(), 2),
        (MessageTooLargeError(), 2),
        (UnavailableError(), 3),
        (ConflictError(), 4),
        (StaleEpochError(), 4),
        (DeniedError(), 4),
        (HandlerError(), 5),
        (ZeroDivisionError(), 5),
    ],
)
def test_code__of_each_class__is_the_documented_one(error: Exception, code: int) -> None:
    assert exits.code_of(error) == code


@pytest.mark.parametrize("command", WITH_DATABASE, ids=" ".join)
def test_database__nobody_answers__is_unavailable(call: Any, command: tuple[str, ...]) -> None:
    ended = call(*command, "--dsn", NOBODY)
    assert (ended.code, ended.out) == (3, b"")
    assert ended.err.startswith("error: ")
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("command", WITH_DATABASE, ids=" ".join)
def test_database__none_named__names_the_ways(call: Any, command: tuple[str, ...]) -> None:
    ended = call(*command)
    assert (ended.code, ended.out) == (2, b"")
    for way in ("--dsn", "COORDINATOR_DSN", "DATABASE_URL", "PGHOST", "--embedded"):
        assert way in ended.err


@pytest.mark.parametrize("command", [command for command in WITH_DATABASE if command[0] != "db"], ids=" ".join)
def test_schema__not_installed__names_the_command(
    call: Any, empty_dsn: str, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COORDINATOR_DSN", empty_dsn)
    ended = call(*command)
    assert (ended.code, ended.out) == (2, b"")
    assert "coordinator db upgrade" in ended.err


@pytest.mark.parametrize("variable", [None, "COORDINATOR_DSN", "DATABASE_URL"])
def test_dsn__empty__is_refused_and_no_other_database_is_asked(
    call: Any, dsn: str, monkeypatch: pytest.MonkeyPatch, variable: str | None
) -> None:
    for name, value in psycopg.conninfo.conninfo_to_dict(dsn).items():
        monkeypatch.setenv({"dbname": "PGDATABASE"}.get(name, f"PG{name.upper()}"), str(value))
    if variable is not None:
        monkeypatch.setenv(variable, "")
    ended = call("topics", "list", *([] if variable else ["--dsn", ""]))
    assert ended.code == exits.USAGE, ended.err
    assert ended.err.startswith(
        f"error: the DSN {f'of {variable}' if variable else 'that was given (dsn, --dsn)'} is empty"
    )
    assert call("topics", "list", "--dsn", "postgresql://").code == exits.OK


def test_schema__of_another_protocol__says_what_to_upgrade(on: Any, dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "create or replace function coordinator.protocol_version() returns int language sql immutable parallel safe "
            "as 'select 99'"
        )
    ended = on("topics", "list")
    assert (ended.code, ended.out) == (2, b"")
    assert "protocol 99" in ended.err
    assert "pg-coordinator" in ended.err


@pytest.mark.parametrize(
    "command",
    [
        ("topics", "describe", "missing"),
        ("topics", "rotate", "missing"),
        ("messages", "publish", "missing"),
        ("messages", "peek", "missing"),
        ("messages", "consume", "missing", "--group", "g", "--exit-at-end"),
        ("groups", "describe", "missing"),
        ("groups", "describe", "missing", "--members"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("as_json", [False, True], ids=["table", "json"])
def test_name__unknown__is_told_on_standard_error(on: Any, command: tuple[str, ...], as_json: bool) -> None:
    ended = on(*command, *["--json"] * as_json)
    assert (ended.code, ended.out) == (2, b"")
    assert ended.err.startswith("error: ")
    assert "missing" in ended.err


@pytest.mark.direct("sends a parameter with the start of the connection")
def test_role__without_rights__is_refused(call: Any, dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("drop role if exists cli_stranger")
        connection.execute("create role cli_stranger")
    try:
        ended = call("topics", "list", "--dsn", psycopg.conninfo.make_conninfo(dsn, options="-c role=cli_stranger"))
        assert (ended.code, ended.out) == (4, b"")
        assert "permission denied" in ended.err
    finally:
        with psycopg.connect(dsn) as connection:
            connection.execute("drop role cli_stranger")


def test_error__detail_and_hint__are_shown() -> None:
    error = NotFoundError("there is no topic 'x'", detail="asked at noon", hint="make it")
    assert failures.lines_of(error) == ["error: there is no topic 'x'", "asked at noon", "hint: make it"]


def test_bug__in_a_command__shows_a_traceback_only_when_asked(
    call: Any, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from coordinator.app import Coordinator

    def broken(_self: Coordinator) -> None:
        raise KeyError("x")

    monkeypatch.setattr(Coordinator, "topics", broken)
    short = call("topics", "list", "--dsn", dsn)
    assert short.code == 5
    assert "Traceback" not in short.err
    assert "KeyError" in short.err
    long = call("topics", "list", "--dsn", dsn, "--verbose")
    assert long.code == 5
    assert "Traceback" in long.err


def test_output__disk_full__is_an_error(start: Any) -> None:
    with Path("/dev/full").open("wb") as full:
        process = start("config", "show", "--dsn", NOBODY, stdout=full)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 5
    assert b"error: " in err
    assert b"Traceback" not in err
    assert b"Exception ignored" not in err


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(
    "command",
    [
        ("lag", "--watch"),
        ("health", "--max-age"),
        ("doctor", "--max-idle"),
        ("dlq", "replay", "g", "--rate"),
        ("demo", "--timeout-s"),
    ],
    ids=" ".join,
)
def test_number__is_none_that_a_clock_reaches__is_refused(call: Any, command: tuple[str, ...], value: str) -> None:
    ended = call(*command, value)
    assert ended.code == 2
    assert value in ended.err


def test_dlq__limit_beyond_what_a_column_holds__names_what_was_given(call: Any) -> None:
    ended = call("dlq", "list", "g", "--limit", 10**20)
    assert ended.code == 2
    assert str(10**20) in ended.err
