"""`coordinator db`."""

from typing import Any

import pytest


@pytest.fixture
def on_empty(call: Any, empty_dsn: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("COORDINATOR_DSN", empty_dsn)
    return call


def test_current__nothing_installed__is_a_finding(on_empty: Any) -> None:
    ended = on_empty("db", "current")
    assert ended.code == 1
    assert [line.split() for line in ended.lines] == [["SCHEMA", "REVISION"], ["coordinator", "-"]]
    assert "coordinator db upgrade" in ended.err
    ended = on_empty("db", "current", "--json")
    assert (ended.code, ended.json) == (1, {"schema": "coordinator", "revision": None})


def test_upgrade__twice__installs_and_then_does_nothing(on_empty: Any) -> None:
    first = on_empty("db", "upgrade", "--json")
    assert first.code == 0
    assert first.json["revision_before"] is None
    revision = first.json["revision"]
    assert on_empty("db", "upgrade").text == f"schema coordinator was at revision {revision} already\n"
    assert on_empty("db", "current").lines[1].split() == ["coordinator", revision]


def test_upgrade__schema_of_ones_own__leaves_the_default_alone(on_empty: Any) -> None:
    assert on_empty("db", "upgrade", "--schema", "shop_log").code == 0
    assert on_empty("db", "current", "--schema", "shop_log").code == 0
    assert on_empty("db", "current").code == 1


def test_downgrade__nobody_to_ask__wants_yes(on: Any) -> None:
    ended = on("db", "downgrade", "base")
    assert (ended.code, ended.out) == (2, b"")
    assert "--yes" in ended.err
    assert on("db", "current").code == 0


def test_downgrade__with_yes__takes_it_back(on: Any) -> None:
    assert on("db", "downgrade", "base", "--yes", "--json").json["revision"] is None
    assert on("db", "current").code == 1


def test_downgrade__nothing_installed__is_a_usage_error(on_empty: Any) -> None:
    ended = on_empty("db", "downgrade", "base", "--yes")
    assert (ended.code, ended.out) == (2, b"")


def test_upgrade__unknown_revision__names_it(on: Any) -> None:
    ended = on("db", "upgrade", "--revision", "9999")
    assert (ended.code, ended.out) == (2, b"")
    assert "9999" in ended.err


def test_psql__arguments_behind_dashes__run_on_the_database_and_give_its_exit_code(run, dsn):
    ended = run("db", "psql", "--dsn", dsn, "--", "-X", "-Atc", "select current_database()")
    assert (ended.code, ended.text.strip()) == (0, dsn.rsplit("/", 1)[-1].partition("?")[0])
    assert run("db", "psql", "--dsn", dsn, "--", "-X", "-c", "select nonsense").code == 1
