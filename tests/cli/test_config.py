"""`coordinator config`: what is in force, where from, and all that is wrong."""

from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://app:hunter2@db.example/shop",
        "postgresql+psycopg://app:hunter2@db.example/shop",
        "postgresql://db.example/shop?user=app&password=hunter2",
        "host=db.example dbname=shop user=app password = 'hunter2'",
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_show__password_in_any_notation__is_masked(call: Any, dsn: str, as_json: bool) -> None:
    ended = call("config", "show", "--dsn", dsn, *["--json"] * as_json)
    assert ended.code == 0
    assert "hunter2" not in ended.text
    assert "db.example" in ended.text


def test_show__sources__are_told(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://db.example/shop")
    monkeypatch.setenv("COORDINATOR_SCHEMA", "shop_log")
    settings = call("config", "show", "--json").json["settings"]
    assert settings["dsn"]["source"] == "DATABASE_URL"
    assert settings["schema"] == {"value": "shop_log", "source": "COORDINATOR_SCHEMA"}
    assert settings["lease_s"]["source"] == "default"
    settings = call("config", "show", "--json", "--schema", "mine", "--embedded").json["settings"]
    assert settings["dsn"] == {"value": "embedded:", "source": "--embedded"}
    assert settings["schema"] == {"value": "mine", "source": "--schema"}


def test_show__no_database_named__is_a_finding(call: Any) -> None:
    ended = call("config", "show")
    assert ended.code == 1
    assert ended.lines[0].split() == ["SETTING", "VALUE", "SOURCE"]
    assert "COORDINATOR_DSN" in ended.err


def test_show__dsn_that_is_none__is_refused_without_being_printed(call: Any) -> None:
    ended = call("config", "show", "--dsn", "hunter2 is no dsn")
    assert ended.code == 2
    assert "hunter2" not in ended.err


@pytest.mark.parametrize("named", [["--embedded"], ["--dsn", "embedded:"], ["--dsn", "embedded:/srv/log"]])
def test_check__embedded_server__is_a_database(call: Any, named: list[str]) -> None:
    ended = call("config", "check", *named, "--json")
    assert (ended.code, ended.json) == (0, {"ok": True, "problems": []})


FILE = """
dsn = "postgresql://app:hunter2@db.example/shop"
schema = "shop_log"
client_id = "billing-1"
[settings]
lease_s = 20
pooler = "session"
listen = false
metrics_port = 9000
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration in the working directory."""
    monkeypatch.chdir(tmp_path)
    made = tmp_path / "coordinator.toml"
    made.write_text(FILE)
    return made


def test_show__file_in_the_working_directory__is_found(call: Any, file: Path) -> None:
    shown = call("config", "show", "--json").json
    assert shown["file"] == "coordinator.toml"
    settings = shown["settings"]
    assert settings["lease_s"] == {"value": 20, "source": "coordinator.toml"}
    assert settings["listen"] == {"value": False, "source": "coordinator.toml"}
    assert settings["client_id"]["value"] == "billing-1"
    assert settings["heartbeat_s"] == {"value": 3.0, "source": "default"}
    assert "db.example" in settings["dsn"]["value"]
    assert "hunter2" not in call("config", "show").text


def test_show__each_source__outranks_the_next(call: Any, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COORDINATOR_LEASE_S", "30")
    monkeypatch.setenv("COORDINATOR_LISTEN", "yes")
    monkeypatch.setenv("COORDINATOR_METRICS_PORT", "none")
    monkeypatch.setenv("COORDINATOR_SCHEMA", "env_log")
    monkeypatch.setenv("PGHOST", "other.example")
    settings = call("config", "show", "--json").json["settings"]
    assert settings["lease_s"] == {"value": 30, "source": "COORDINATOR_LEASE_S"}
    assert settings["listen"] == {"value": True, "source": "COORDINATOR_LISTEN"}
    assert settings["metrics_port"] == {"value": None, "source": "COORDINATOR_METRICS_PORT"}
    assert settings["schema"]["source"] == "COORDINATOR_SCHEMA"
    assert settings["dsn"]["source"] == "coordinator.toml"
    monkeypatch.setenv("DATABASE_URL", "postgresql://env.example/shop")
    assert call("config", "show", "--json").json["settings"]["dsn"]["source"] == "DATABASE_URL"
    assert call("config", "show", "--json", "--schema", "mine").json["settings"]["schema"]["source"] == "--schema"


@pytest.mark.parametrize("way", ["option", "variable"])
def test_file__named__is_the_one_that_counts(call: Any, file: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other = file.with_name("other.toml")
    other.write_text('dsn = "postgresql://other.example/shop"')
    if way == "variable":
        monkeypatch.setenv("COORDINATOR_CONFIG", str(other))
    settings = call("config", "show", "--json", *["--config", other] * (way == "option")).json["settings"]
    assert "other.example" in settings["dsn"]["value"]
    assert settings["lease_s"]["source"] == "default"


@pytest.mark.parametrize("text", ["dsn = ", "[settings", "\xff"])
def test_file__no_toml__says_where(call: Any, file: Path, text: str) -> None:
    file.write_bytes(text.encode("latin-1"))
    for command in (("config", "check"), ("config", "show"), ("topics", "list")):
        ended = call(*command)
        assert (ended.code, ended.out) == (2, b"")
        assert "coordinator.toml" in ended.err


def test_file__named_and_missing__is_an_error(call: Any) -> None:
    ended = call("config", "check", "--config", "/nowhere/x.toml")
    assert ended.code == 2
    assert "/nowhere/x.toml" in ended.err


def test_check__nothing_wrong__is_quiet(call: Any, file: Path) -> None:
    ended = call("config", "check")
    assert (ended.code, ended.out) == (0, b"")
    assert "0 problems" in ended.err
    assert call("config", "check", "--json").json == {"ok": True, "problems": []}


def test_check__wrong_values__are_all_named(call: Any, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COORDINATOR_POOLER", raising=False)
    file.write_text(
        """
dsn = "nonsense"
schema = "Public"
colour = "red"
[settings]
lease_s = "long"
prefetch = 1.5
pooler = "perhaps"
listen = 1
leese_s = 3
pool_timeout_s = nan
"""
    )
    monkeypatch.setenv("COORDINATOR_MAX_HOLES", "many")
    monkeypatch.setenv("COORDINATOR_LINGER", "1")
    ended = call("config", "check", "--json")
    assert ended.code == 1
    problems = {problem["name"]: problem for problem in ended.json["problems"]}
    assert set(problems) == {
        "dsn",
        "schema",
        "colour",
        "lease_s",
        "prefetch",
        "pooler",
        "listen",
        "leese_s",
        "pool_timeout_s",
        "max_holes",
        "COORDINATOR_LINGER",
    }
    assert problems["lease_s"]["found"] == "'long'"
    assert problems["lease_s"]["allowed"] == "between 0.5 and 3600"
    assert problems["prefetch"]["allowed"] == "a whole number between 1 and 10000"
    assert problems["pooler"]["allowed"] == "one of auto, none, session, transaction"
    assert problems["max_holes"] == {
        "name": "max_holes",
        "source": "COORDINATOR_MAX_HOLES",
        "found": "'many'",
        "allowed": "a whole number between 1 and 10000",
    }
    assert problems["leese_s"]["allowed"] == "no such name; did you mean lease_s?"
    assert "linger_s" in problems["COORDINATOR_LINGER"]["allowed"]
    assert all(problem["source"] for problem in problems.values())
    table = call("config", "check")
    assert table.code == 1
    assert table.lines[0].split() == ["NAME", "SOURCE", "FOUND", "ALLOWED"]


def test_check__values_that_do_not_go_together__are_told(call: Any, file: Path) -> None:
    file.write_text(FILE + "heartbeat_s = 10\n")
    ended = call("config", "check")
    assert ended.code == 1
    assert "3 heartbeats" in ended.text


def test_check__dsn_that_is_no_text__is_not_shown(call: Any, file: Path) -> None:
    file.write_text('dsn = ["hunter2"]')
    ended = call("config", "check")
    assert ended.code == 1
    assert "hunter2" not in ended.text + ended.err


def test_command__wrong_value__names_all_of_them(call: Any, file: Path) -> None:
    file.write_text(FILE + "prefetch = 0\nmax_holes = 0\n")
    ended = call("topics", "list")
    assert (ended.code, ended.out) == (2, b"")
    assert "prefetch (coordinator.toml): wanted a whole number between 1 and 10000, found 0" in ended.err
    assert "max_holes" in ended.err


def test_application__reads_the_file_and_the_environment(dsn: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from coordinator import AsyncCoordinator, Coordinator, Settings

    file.write_text(f'dsn = "{dsn}"\nclient_id = "billing-1"\n[settings]\nlease_s = 20\n')
    monkeypatch.setenv("COORDINATOR_PREFETCH", "7")
    for kind in (Coordinator, AsyncCoordinator):
        app = kind()
        assert (app.settings.lease_s, app.settings.prefetch, app.client_id) == (20, 7, "billing-1")
        assert kind(settings=Settings(), client_id="mine").settings.lease_s == 10
    with Coordinator() as app:
        assert app.topics() == []


@pytest.mark.direct("the pooler is a finding")
def test_command__config_option__reaches_the_database(call: Any, dsn: str, tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text(f'dsn = "{dsn}"')
    for arguments in (
        ("--config", file, "topics", "list"),
        ("topics", "list", "--config", file),
        ("doctor", "--config", file),
    ):
        assert call(*arguments).code == 0


def test_misspelt_command__names_the_one_that_was_meant(call: Any) -> None:
    for words, meant in ((("topic", "list"), "topics"), (("topics", "lst"), "list")):
        ended = call(*words)
        assert ended.code == 2
        assert f"Did you mean {meant}?" in ended.err
