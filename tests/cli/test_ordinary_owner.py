"""An installation on a managed server: its owner is no superuser, and the provider keeps views and functions to itself."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

READS = [
    ("doctor",),
    ("metrics", "print"),
    ("health", "--live"),
    ("health", "--ready"),
    ("groups", "list"),
    ("groups", "describe", "billing"),
    ("groups", "describe", "billing", "--members"),
    ("groups", "describe", "billing", "--in-flight"),
    ("topics", "list"),
    ("topics", "describe", "orders"),
    ("members", "list"),
    ("members", "blocked"),
    ("lag",),
    ("dlq", "list", "billing"),
    ("dlq", "stats", "billing"),
    ("messages", "show", "orders", "0", "0"),
    ("scheduled", "list"),
    ("db", "current"),
]
# What some providers do not show, or only to their own role.
WITHHELD = [
    "revoke execute on function pg_catalog.pg_control_system() from public",
    "revoke execute on function pg_catalog.pg_walfile_name(pg_lsn), pg_catalog.pg_current_wal_lsn() from public",
    "revoke select on pg_catalog.pg_stat_activity from public",
    "revoke select on pg_catalog.pg_prepared_xacts from public",
    "revoke select on pg_catalog.pg_stat_all_tables from public",
]


@pytest.fixture
def owner(empty_dsn: str) -> Any:
    """The DSN of a role with CREATE on the database, and nothing else."""
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        name = connection.info.dbname
        role = f"owner_{name.rpartition('_')[2]}"
        connection.execute(f"create role {role} login nosuperuser password 'x'")
        connection.execute(f"grant create on database {name} to {role}")
        yield make_conninfo(empty_dsn, user=role, password="x")
        connection.execute(f"drop owned by {role} cascade")
        connection.execute(f"drop role {role}")


@pytest.fixture
def installed(owner: str, call: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COORDINATOR_DSN", owner)
    for command in (
        ("db", "upgrade"),
        ("topics", "create", "orders", "--partitions", "2"),
        ("messages", "publish", "orders"),
        ("messages", "consume", "orders", "--group", "billing", "--exit-at-end"),
    ):
        ended = call(*command, stdin=b"1\n2\n")
        assert ended.code == 0, (command, ended.err)
    return owner


@pytest.mark.direct("a pooler has users of its own")
@pytest.mark.parametrize("withheld", [False, True], ids=["ordinary", "withheld"])
def test_commands__of_an_ordinary_owner__work_and_say_what_could_not_be_read(
    installed: str, call: Any, empty_dsn: str, withheld: bool
) -> None:
    if withheld:
        with psycopg.connect(empty_dsn, autocommit=True) as connection:
            for statement in WITHHELD:
                connection.execute(statement)
    wrong = {}
    for command in READS:
        for form in ((), ("--json",)):
            ended = call(*command, *form)
            if ended.code not in (0, 1) or "Traceback" in ended.err or "error:" in ended.err:
                wrong[command, form] = (ended.code, ended.err)
    assert wrong == {}
    report = json.loads(call("doctor", "--json").out)
    assert report["findings"] == []
    skipped = {entry["check"]: entry["reason"] for entry in report["skipped"]}
    printed = call("metrics", "print")
    assert "coordinator_group_lag{" in printed.text
    # A ready query is SQL that is run as it is: the server's own words say which view it is.
    publishers = call("sql", "query", "open-publishers")
    if withheld:
        assert skipped.keys() == {"load", "snapshots", "dead-rows", "publishers"}
        assert all("permission denied for" in reason for reason in skipped.values())
        assert "pg_stat_all_tables, pg_stat_activity, pg_prepared_xacts" in printed.err
        assert "coordinator_oldest_snapshot_age_seconds " not in printed.text
        assert publishers.code == 4
        assert publishers.err.startswith("error: permission denied for view pg_stat_activity\n")
    else:
        assert skipped.keys() == {"snapshots"}
        assert "is not in pg_monitor" in skipped["snapshots"]
        assert printed.err == ""
        assert "coordinator_oldest_snapshot_age_seconds " in printed.text
        assert publishers.code == 0
