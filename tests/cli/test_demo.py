"""`coordinator demo`: the comparison on facts that are made up, and the command on a server."""

import dataclasses
import json
import time

import pytest
from click.testing import CliRunner

from coordinator.cli.demo import run, tables
from coordinator.cli.demo.command import demo
from coordinator.cli.demo.facts import Found, GroupFacts, Published, Wanted, compare, wrong_carriers
from coordinator.cli.demo.flights import CarrierDelay, carrier_of, delays_of, numbered, read_flights, share_of
from coordinator.errors import ConfigError

MESSAGES = 600


def good_facts(wanted):
    groups = {
        name: GroupFacts(
            wanted.message_count,
            lag=0,
            delivery_count=wanted.message_count + 3,
            seen_count=wanted.message_count,
            phantom_count=0,
            overtaken_count=0,
        )
        for name in ("audit", "delays")
    }
    published = Published(wanted.message_count, with_row_count=200, rolled_back_count=7)
    return Found(published, row_count=200, ledger_count=wanted.message_count, groups=groups, delays=dict(wanted.delays))


@pytest.fixture(scope="module")
def wanted():
    return Wanted.of(numbered(read_flights(), MESSAGES))


def failed(wanted, found):
    return [check.name for check in compare(wanted, found) if not check.ok]


def test_data__read__is_the_week_of_the_source():
    flights = read_flights()
    assert len(flights) == 6099
    assert carrier_of(flights[0]) == "UA"
    assert len(delays_of(flights)) == 15
    assert sum(delay.flights - delay.arrived for delay in delays_of(flights).values()) == 56


def test_numbered__more_than_there_is__repeats_with_numbers_of_their_own():
    flights = numbered(read_flights(), 7000)
    assert [flight["nr"] for flight in flights] == list(range(7000))
    assert flights[6099]["flight"] == flights[0]["flight"]


def test_share_of__all_shares__are_the_whole_and_keep_aircraft_together():
    flights = numbered(read_flights(), 500)
    shares = [list(share_of(flights, share, 3)) for share in range(3)]
    assert sorted(flight["nr"] for share in shares for flight in share) == list(range(500))
    tails = [{flight["tail"] for flight in share} for share in shares]
    assert not tails[0] & tails[1] | tails[1] & tails[2] | tails[0] & tails[2]


def test_compare__good_facts__finds_nothing_and_allows_duplicates(wanted):
    found = good_facts(wanted)
    assert failed(wanted, found) == []
    assert found.groups["audit"].duplicate_count == 3


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"ledger_count": MESSAGES - 1}, "delays: messages booked once"),
        ({"row_count": 199}, "business rows committed with their messages"),
        ({"published": Published(MESSAGES - 1, 200, 7)}, "messages published"),
    ],
)
def test_compare__one_number_off__is_told(wanted, change, check):
    assert failed(wanted, dataclasses.replace(good_facts(wanted), **change)) == [check]


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"seen_count": MESSAGES - 1}, "audit: lost"),
        ({"settled_count": MESSAGES - 1}, "audit: settled"),
        ({"lag": 1}, "audit: lag"),
        ({"phantom_count": 1}, "audit: delivered though rolled back"),
        ({"overtaken_count": 1}, "audit: overtaken within one aircraft"),
    ],
)
def test_compare__one_number_of_a_group_off__is_told(wanted, change, check):
    found = good_facts(wanted)
    groups = {**found.groups, "audit": dataclasses.replace(found.groups["audit"], **change)}
    assert failed(wanted, dataclasses.replace(found, groups=groups)) == [check]


def test_wrong_carriers__sum_booked_twice_missing_and_too_many__are_named():
    right = {"AA": CarrierDelay(2, 2, 10), "UA": CarrierDelay(1, 0, 0)}
    wrong = {"AA": CarrierDelay(3, 3, 20), "ZZ": CarrierDelay(1, 1, 1)}
    assert wrong_carriers(right, wrong) == ["AA", "UA", "ZZ"]


def test_demo__twice_in_one_database__adds_up_each_time(empty_dsn):
    for _ in range(2):
        result = CliRunner().invoke(
            demo, ["--dsn", empty_dsn, "--json", "--messages", str(MESSAGES), "--processes", "2", "--timeout-s", "60"]
        )
        assert result.exit_code == 0, result.output
        facts = json.loads(result.stdout)
        assert facts["ok"] is True
        assert facts["published"]["count"] == MESSAGES
        assert facts["published"]["rolled_back_count"] > 0
        assert facts["groups"]["delays"]["lost"] == facts["groups"]["audit"]["lost"] == 0
        # The message in whose handler the process was killed comes again, after its effect was committed.
        assert facts["groups"]["delays"]["duplicates"] >= 1
        assert facts["kill"]["in_flight_count"] >= 1


def test_demo__ledger_row_gone_before_the_comparison__exits_1(empty_dsn, monkeypatch):
    """The comparison looks at the tables, not at what it hopes for."""
    read_found = run.read_found

    def tampered(app, connection, published, message_count):
        connection.execute(f"delete from {tables.SERVICE_SCHEMA}.ledger where nr = 7")
        return read_found(app, connection, published, message_count)

    monkeypatch.setattr(run, "read_found", tampered)
    result = CliRunner().invoke(demo, ["--dsn", empty_dsn, "--json", "--messages", str(MESSAGES), "--processes", "2"])
    assert result.exit_code == 1
    wrong = [check for check in json.loads(result.stdout)["checks"] if not check["ok"]]
    assert wrong == [{"name": "delays: messages booked once", "wanted": MESSAGES, "found": MESSAGES - 1, "ok": False}]


def test_demo__time_is_up__says_what_it_waited_for_and_exits_1(empty_dsn):
    result = CliRunner().invoke(demo, ["--dsn", empty_dsn, "--timeout-s", "1", "--messages", "20000"])
    assert result.exit_code == 1
    assert "the time is up" in result.stderr


def test_demo__call_that_never_returns__is_interrupted_and_exits_1(empty_dsn, monkeypatch):
    monkeypatch.setattr(run, "HARD_LIMIT_EXTRA_S", 0.2)
    monkeypatch.setattr(run, "install", lambda _dsn, _schema: time.sleep(60))
    started_s = time.monotonic()
    result = CliRunner().invoke(demo, ["--dsn", empty_dsn, "--timeout-s", "1"])
    assert result.exit_code == 1
    assert "did not return" in result.stderr
    assert time.monotonic() - started_s < 30


def test_demo__second_run_at_the_same_time__is_refused(empty_dsn):
    with tables.connect(empty_dsn) as connection:
        tables.lock_run(connection)
        result = CliRunner().invoke(demo, ["--dsn", empty_dsn])
        assert isinstance(result.exception, ConfigError)


def test_demo__foreign_schema_of_that_name__is_left_alone(empty_dsn):
    with tables.connect(empty_dsn) as connection:
        connection.execute(f"create schema {tables.SERVICE_SCHEMA}")
        result = CliRunner().invoke(demo, ["--dsn", empty_dsn])
        assert "not the demo's" in str(result.exception)
        assert connection.execute("select 1 from pg_namespace where nspname = %s", (tables.SERVICE_SCHEMA,)).fetchone()
