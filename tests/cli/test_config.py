"""`coordinator config show`."""

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
