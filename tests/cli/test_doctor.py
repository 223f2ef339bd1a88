"""`coordinator doctor`: what it prints, and its exit codes."""

import psycopg
import pytest

from coordinator.doctor import CHECKS


@pytest.mark.direct("the pooler is a finding")
def test_doctor__nothing_wrong__is_quiet(on):
    ended = on("doctor")
    assert (ended.code, ended.out) == (0, b"")
    assert f"{len(CHECKS)} checks, 0 findings" in ended.err


def test_doctor__a_finding__is_a_row_and_exit_code_1(on, dsn):
    with psycopg.connect(dsn) as connection:
        connection.execute("alter table coordinator.claims reset (fillfactor)")
    ended = on("doctor", "--check", "storage")
    assert ended.code == 1
    head, row = ended.lines
    assert head.split() == ["SEVERITY", "CHECK", "SUBJECT", "FOUND", "WHAT-TO-DO"]
    assert row.startswith("warning")
    assert "table claims" in row
    assert "alter table claims set (fillfactor=50)" in row


@pytest.mark.parametrize("broken", [False, True])
def test_doctor__json__is_one_object(on, dsn, broken):
    if broken:
        with psycopg.connect(dsn) as connection:
            connection.execute("drop function coordinator.peek(text, int, bigint, int)")
    ended = on("doctor", "--json", "--check", "functions", "--check", "snapshots")
    assert ended.code == int(broken)
    assert ended.json["ok"] is not broken
    assert ended.json["checked"] == ["functions", "snapshots"]
    assert ended.json["skipped"] == []
    assert [set(finding) for finding in ended.json["findings"]] == [
        {"check", "severity", "subject", "found", "advice"}
    ] * broken


def test_doctor__without_the_schema__is_a_finding(call, empty_dsn):
    ended = call("doctor", "--dsn", empty_dsn)
    assert ended.code == 1
    assert "coordinator db upgrade" in ended.text


def test_doctor__thresholds__are_those_of_the_call(on, dsn):
    with psycopg.connect(dsn, application_name="nightly report") as other:
        other.execute("set transaction isolation level repeatable read")
        other.execute("select 1")
        assert on("doctor", "--check", "snapshots").code == 0
        ended = on("doctor", "--check", "snapshots", "--max-snapshot-age", "0")
    assert ended.code == 1
    assert "nightly report" in ended.text


def test_doctor__left_out__is_not_checked(on):
    assert "drift" not in on("doctor", "--without", "drift", "--json").json["checked"]


def test_doctor__unknown_check__names_the_known_ones(on):
    ended = on("doctor", "--check", "luck")
    assert ended.code == 2
    assert "sequences" in ended.err
