"""`coordinator demo`: the comparison on facts that are made up, and the command on a server."""

import dataclasses
import json
import time
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from coordinator import Coordinator
from coordinator.cli.demo import run, tables
from coordinator.cli.demo.command import demo
from coordinator.cli.demo.facts import (
    DeadLetter,
    Effects,
    Found,
    GroupFacts,
    Published,
    Replay,
    Wanted,
    compare,
    wrong_carriers,
)
from coordinator.cli.demo.flights import (
    CarrierDelay,
    carrier_of,
    delays_of,
    is_cancelled,
    numbered,
    poison_of,
    read_flights,
    share_of,
)
from coordinator.cli.demo.plan import SCHEMA
from coordinator.errors import ConfigError

MESSAGES = 600


def letters(reason_by_nr):
    return [
        DeadLetter(nr, 0, nr, reason, "text", attempts=1, crashes=3 if reason == "crash" else 0)
        for nr, reason in reason_by_nr.items()
    ]


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
    booked = [nr for nr in range(wanted.message_count) if nr not in wanted.dead_after]
    return Found(
        Published(wanted.message_count, with_row_count=200, rolled_back_count=7),
        row_count=200,
        groups=groups,
        dead_before=letters(wanted.dead_before),
        replay=Replay(len(wanted.replayed_nrs), {"audit": [], "delays": list(wanted.replayed_nrs)}, lag=0),
        dead_after=letters(wanted.dead_after),
        effects=Effects(booked, overtaken_count=0),
        delays=dict(wanted.delays),
    )


@pytest.fixture(scope="module")
def wanted():
    return Wanted.of(numbered(read_flights(), MESSAGES))


def failed(wanted, found):
    return [check.name for check in compare(wanted, found) if not check.ok]


def test_data__read__is_the_week_of_the_source():
    flights = read_flights()
    assert len(flights) == 6099
    assert carrier_of(flights[0]) == "UA"
    delays = delays_of(flights)
    assert len(delays) == 15
    assert sum(delay.cancelled for delay in delays.values()) == sum(map(is_cancelled, flights)) == 35
    assert sum(delay.flights - delay.arrived for delay in delays.values()) == 21


def test_wanted__of_the_week__has_35_cancelled_and_one_poison_message_that_took_off():
    flights = numbered(read_flights(), 6099)
    wanted = Wanted.of(flights)
    assert len(wanted.cancelled_nrs) == 35
    assert poison_of(flights) == wanted.poison_nr == 4066
    assert not is_cancelled(flights[wanted.poison_nr])
    assert wanted.effect_count == 6099 - 36 + 5 == sum(d.flights + d.cancelled for d in wanted.delays.values())
    assert sum(delay.cancelled for delay in wanted.delays.values()) == len(wanted.replayed_nrs) == 5


def test_wanted__more_than_the_data__repeats_the_cancelled_flights():
    assert len(Wanted.of(numbered(read_flights(), 2 * 6099)).cancelled_nrs) == 70


def test_wanted__no_flight_cancelled__has_nothing_to_replay():
    wanted = Wanted.of(numbered(read_flights()[:10], 10))
    assert (wanted.cancelled_nrs, wanted.replayed_nrs, list(wanted.dead_before)) == ([], [], [wanted.poison_nr])


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
        ({"row_count": 199}, "business rows committed with their messages"),
        ({"published": Published(MESSAGES - 1, 200, 7)}, "messages published"),
    ],
)
def test_compare__one_number_off__is_told(wanted, change, check):
    assert failed(wanted, dataclasses.replace(good_facts(wanted), **change)) == [check]


@pytest.mark.parametrize(
    ("change", "checks"),
    [
        (lambda nrs: nrs[1:], {"effects: messages booked", "delays: lost"}),
        (lambda nrs: [*nrs, nrs[0]], {"effects: booked again"}),
    ],
)
def test_compare__effect_missing_or_there_twice__is_told(wanted, change, checks):
    good = good_facts(wanted)
    effects = dataclasses.replace(good.effects, nrs=change(good.effects.nrs))
    assert set(failed(wanted, dataclasses.replace(good, effects=effects))) == checks


def test_compare__effect_overtaken__is_told(wanted):
    found = dataclasses.replace(good_facts(wanted), effects=Effects(good_facts(wanted).effects.nrs, overtaken_count=1))
    assert failed(wanted, found) == ["effects: overtaken within one aircraft"]


INNOCENT = "dead letters: innocent or with another reason"


@pytest.mark.parametrize(
    ("change", "checks"),
    [
        (lambda w, dead: {**dead, 5: "crash"}, [INNOCENT]),
        (
            lambda w, dead: {**dead, w.poison_nr: "attempts"},
            ["dead letters: the poison message, for its crashes", INNOCENT],
        ),
        (
            lambda w, dead: {**dead, w.cancelled_nrs[0]: "crash"},
            ["dead letters: cancelled flights, rejected", INNOCENT],
        ),
        (
            lambda w, dead: {nr: reason for nr, reason in dead.items() if nr != w.poison_nr},
            ["delays: lost", "dead letters: the poison message, for its crashes"],
        ),
    ],
)
def test_compare__dead_letter_of_an_innocent_missing_or_for_another_reason__is_told(wanted, change, checks):
    found = dataclasses.replace(good_facts(wanted), dead_before=letters(change(wanted, wanted.dead_before)))
    assert failed(wanted, found) == checks


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"given_back": 0}, "replay: dead letters given back"),
        ({"lag": 1}, "replay: lag of delays"),
        ({"nrs_by_group": {"audit": [], "delays": []}}, "replay: delivered to delays"),
        ({"nrs_by_group": {"audit": [], "delays": [22, 466, 568, 1]}}, "replay: other messages delivered to delays"),
        ({"nrs_by_group": {"audit": [22], "delays": [22, 466, 568]}}, "replay: delivered to audit"),
    ],
)
def test_compare__replay_of_too_little_too_much_or_to_others__is_told(wanted, change, check):
    good = good_facts(wanted)
    assert list(wanted.replayed_nrs) == [22, 466, 568]
    found = dataclasses.replace(good, replay=dataclasses.replace(good.replay, **change))
    assert failed(wanted, found) == [check]


def test_compare__replayed_message_dead_again__is_told(wanted):
    found = dataclasses.replace(good_facts(wanted), dead_after=letters(wanted.dead_before))
    assert failed(wanted, found) == ["replay: dead letters that are new"]


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


def test_demo__run__adds_up_and_a_ledger_row_that_is_gone_is_told_and_the_next_run_begins_anew(empty_dsn, monkeypatch):
    """One test, because a run takes its time: leases have to end three times."""
    read_found, given = run.read_found, []

    def remembered(*arguments):
        given.extend(arguments)
        return read_found(*arguments)

    monkeypatch.setattr(run, "read_found", remembered)
    arguments = ["--dsn", empty_dsn, "--json", "--messages", str(MESSAGES), "--processes", "2"]
    result = CliRunner().invoke(demo, [*arguments, "--timeout-s", "90"])
    assert result.exit_code == 0, result.output
    _assert_adds_up(json.loads(result.stdout))

    # The comparison looks at the tables, and not at what it hopes for.
    with tables.connect(empty_dsn) as connection, Coordinator(empty_dsn, schema=SCHEMA) as app:
        connection.execute(f"delete from {tables.SERVICE_SCHEMA}.ledger where nr = 7")
        _, _, wanted, *others = given
        assert failed(wanted, read_found(app, connection, wanted, *others)) == [
            "delays: lost",
            "effects: messages booked",
        ]

    result = CliRunner().invoke(demo, [*arguments, "--timeout-s", "1"])
    assert result.exit_code == 1
    assert "the time is up" in result.stderr
    with tables.connect(empty_dsn) as connection:
        count = connection.execute(f"select count(*) from {tables.SERVICE_SCHEMA}.ledger").fetchone()[0]
        assert count < wanted.effect_count - 1


def _assert_adds_up(facts):
    wanted = Wanted.of(numbered(read_flights(), MESSAGES))
    assert facts["ok"] is True
    assert facts["published"]["count"] == MESSAGES
    assert facts["published"]["rolled_back_count"] > 0
    assert facts["groups"]["delays"]["lost"] == facts["groups"]["audit"]["lost"] == 0
    # The message in whose handler a process was killed comes again, as do those that the poison message took along.
    assert facts["groups"]["delays"]["duplicates"] >= 2
    assert facts["kill"]["in_flight_count"] >= 1
    assert facts["effects"] == {
        "count": wanted.effect_count,
        "wanted": wanted.effect_count,
        "duplicates": 0,
        "overtaken": 0,
    }
    assert {letter["nr"]: letter["reason"] for letter in facts["dead_letters"]} == wanted.dead_before
    assert len(facts["poison"]["deaths"]) >= 2
    assert facts["replay"]["delivered"]["audit"] == []
    assert sorted(facts["replay"]["delivered"]["delays"]) == list(wanted.replayed_nrs)


def test_demo__call_that_never_returns__is_interrupted_and_exits_1(empty_dsn, monkeypatch):
    monkeypatch.setattr(run, "HARD_LIMIT_EXTRA_S", 0.2)
    monkeypatch.setattr(run, "install", lambda _dsn, _schema: time.sleep(60))
    started_s = time.monotonic()
    result = CliRunner().invoke(demo, ["--dsn", empty_dsn, "--timeout-s", "1"])
    assert result.exit_code == 1
    assert "did not return" in result.stderr
    assert time.monotonic() - started_s < 30


def test_demo__second_run_at_the_same_time__is_refused(empty_dsn):
    with tables.sole_run(empty_dsn):
        result = CliRunner().invoke(demo, ["--dsn", empty_dsn])
        assert isinstance(result.exception, ConfigError)
    with tables.sole_run(empty_dsn):
        pass


def test_demo__note_of_a_delivery__leaves_the_session_as_it_was(empty_dsn):
    """A pooler lends the session to somebody whose COMMITs have to wait for the disk."""
    with tables.connect(empty_dsn) as connection:
        tables.create(connection, ["AA"])
        message = SimpleNamespace(value={"nr": 1}, partition=0, offset=0, key="k", attempt=1)
        tables.insert_deliveries(connection, "g", "p", [message])
        assert connection.execute("show synchronous_commit").fetchone() == ("on",)
        assert connection.execute(f"select count(*) from {tables.SERVICE_SCHEMA}.deliveries").fetchone() == (1,)


def test_demo__foreign_schema_of_that_name__is_left_alone(empty_dsn):
    with tables.connect(empty_dsn) as connection:
        connection.execute(f"create schema {tables.SERVICE_SCHEMA}")
        result = CliRunner().invoke(demo, ["--dsn", empty_dsn])
        assert "not the demo's" in str(result.exception)
        assert connection.execute("select 1 from pg_namespace where nspname = %s", (tables.SERVICE_SCHEMA,)).fetchone()
