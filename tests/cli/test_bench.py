"""`coordinator bench`: its arithmetic, and a small run on a server."""

import json
import os
from dataclasses import replace
from functools import partial

import psycopg
import pytest
from click.testing import CliRunner

from coordinator.cli.bench import crowd, fanout
from coordinator.cli.bench.command import bench
from coordinator.cli.bench.fleet import Fleet, Receipts
from coordinator.cli.bench.ours import Ours
from coordinator.cli.bench.stats import Timing, case_of, losses, percentile, ratio_of
from coordinator.cli.bench.workload import Workload, number_of
from coordinator.errors import UnavailableError


@pytest.mark.parametrize(("percent", "value"), [(50, 5), (99, 10), (100, 10), (0, 1), (10, 1), (11, 2)])
def test_percentile__of_1_to_10__is_a_value_that_occurred(percent, value):
    assert percentile(list(range(10, 0, -1)), percent) == value


def test_losses__missing_and_repeated__are_both_counted():
    assert losses(4, [0, 1, 1, 3]) == (1, 1)


def test_case_of__rounds_of_different_speed__compares_within_each_round():
    """A ratio of the medians would mix a fast round of ours with a slow one of bare."""
    case = case_of(
        "x",
        [Timing(100, 1.0), Timing(100, 10.0), Timing(100, 4.0)],
        [Timing(100, 0.5), Timing(100, 5.0), Timing(100, 1.0)],
    )
    assert (case.ratio.median, case.ratio.low, case.ratio.high) == (0.5, 0.25, 0.5)


def test_ratio_of__one_that_got_nothing__is_zero():
    """A form that lost everything must end in a report, and not in a division by zero."""
    assert ratio_of([Timing(5, 1.0)], [Timing(0, 1.0)]).median == 0.0


def test_case_of__below_its_aim__says_so():
    assert case_of("x", [Timing(1, 1.0)], [Timing(1, 0.1)], wanted_ratio=0.5).is_below
    assert not case_of("x", [Timing(1, 1.0)], [Timing(1, 1.0)], wanted_ratio=0.5).is_below


def test_workload__payload__has_its_size_and_its_number():
    payload = Workload(10, 200).payload(7)
    assert len(payload) == 200
    assert number_of(payload) == 7


def schemas(dsn):
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("select nspname from pg_namespace where nspname like 'coordinator_bench%'")
        return {row[0] for row in rows}


def test_bench__small_run__measures_all_loses_nothing_and_cleans_up(empty_dsn):
    result = CliRunner().invoke(bench, ["--dsn", empty_dsn, "--json", "--messages", "2000", "--repeat", "2"])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts["lost"] == 0
    assert set(facts["cases"]) == {
        "publish_single",
        "publish_batched",
        "consume_batches",
        "consume_iterator",
        "consume_subscribe",
    }
    ratio = facts["subscribe_to_iterator"]
    assert 0 < ratio["low"] <= ratio["median"] <= ratio["high"]
    assert ratio["below"] == (ratio["median"] < ratio["wanted_ratio"])
    assert all(case["ours"]["median"] > 0 and case["ratio"]["low"] > 0 for case in facts["cases"].values())
    assert 0 < facts["latency_p50_ms"] <= facts["latency_p99_ms"]
    assert schemas(empty_dsn) == set()


@pytest.mark.parametrize("form", ["consume_batches", "consume_subscribe"])
def test_bench__a_message_missing__exits_1(empty_dsn, monkeypatch, form):
    consume = getattr(Ours, form)

    def forgetful(self, topic, group, count):
        timing, numbers = consume(self, topic, group, count)
        return timing, numbers[1:]

    monkeypatch.setattr(Ours, form, forgetful)
    result = CliRunner().invoke(bench, ["--dsn", empty_dsn, "--json", "--messages", "2000", "--repeat", "1"])
    assert result.exit_code == 1
    assert json.loads(result.stdout)["lost"] == 1


def test_bench__keep__leaves_the_schemas(empty_dsn):
    result = CliRunner().invoke(bench, ["--dsn", empty_dsn, "--messages", "2000", "--repeat", "1", "--keep"])
    assert result.exit_code == 0, result.output
    assert schemas(empty_dsn) == {"coordinator_bench", "coordinator_bench_bare"}


def test_scaling__small_run__measures_each_combination_loses_nothing_and_cleans_up(empty_dsn):
    options = ["--consumers", "1,3", "--prefetch", "5,auto", "--messages", "600", "--partitions", "2"]
    result = CliRunner().invoke(bench, ["scaling", "--dsn", empty_dsn, "--json", *options])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts["ok"]
    found = [(point["messages"], point["consumers"], point["prefetch"]) for point in facts["points"]]
    assert found == [(600, 1, 5), (600, 1, None), (600, 3, 5), (600, 3, None)]
    for point in facts["points"]:
        assert point["lost"] == 0
        assert point["rate"] > 0
        assert 0 < point["p50_ms"] <= point["p99_ms"]
        assert 0 < point["average_ms"] <= point["p99_ms"] * 1.01
    assert schemas(empty_dsn) == set()


def test_scaling__a_message_missing__exits_1_and_says_so_in_the_table(empty_dsn, monkeypatch):
    finish = Fleet.finish

    def forgetful(self):
        receipts = finish(self)
        return Receipts(receipts.numbers[1:], receipts.at_s[1:])

    monkeypatch.setattr(Fleet, "finish", forgetful)
    options = ["--consumers", "2", "--prefetch", "auto", "--messages", "100", "--partitions", "2"]
    result = CliRunner().invoke(bench, ["scaling", "--dsn", empty_dsn, *options])
    assert result.exit_code == 1, result.output
    head, row = result.stdout.splitlines()
    assert dict(zip(head.split(), row.split(), strict=True))["LOST"] == "1"


def test_fanout__small_run__compares_each_combination_loses_nothing_and_cleans_up(empty_dsn):
    options = ["--groups", "2", "--members", "1,2", "--messages", "2000", "--partitions", "2", "--repeat", "1"]
    result = CliRunner().invoke(bench, ["fanout", "--dsn", empty_dsn, "--json", *options])
    assert result.exit_code == 0, result.output
    alone, shared = json.loads(result.stdout)["points"]
    assert [(point["groups"], point["members"], point["lost"]) for point in (alone, shared)] == [(2, 1, 0), (2, 2, 0)]
    assert alone["ours"]["rate"]["median"] > 0
    # The payload and its key are in there, once for both groups.
    assert 200 < alone["ours"]["wal_bytes"]["median"] < 2000
    assert alone["wal_ratio"]["median"] == pytest.approx(
        alone["ours"]["wal_bytes"]["median"] / alone["bare"]["wal_bytes"]["median"]
    )
    assert shared["bare"] is shared["rate_ratio"] is None
    assert schemas(empty_dsn) == set()


def test_fanout__a_message_missing__exits_1_and_says_so_in_the_table(empty_dsn, monkeypatch):
    run = crowd.run

    def forgetful(jobs, meter):
        work = run(jobs, meter)
        return replace(work, results=[numbers[1:] for numbers in work.results])

    monkeypatch.setattr(crowd, "run", forgetful)
    monkeypatch.setattr(fanout, "_bare", lambda *_: fanout._Sample(1.0, 1.0, 1.0))
    options = ["--groups", "1", "--messages", "2000", "--partitions", "2", "--repeat", "1"]
    result = CliRunner().invoke(bench, ["fanout", "--dsn", empty_dsn, *options])
    assert result.exit_code == 1, result.output
    assert result.stdout.splitlines()[1].split()[-2:] == ["1", "0"]


def test_fanout__a_process_that_dies__ends_the_bench_with_an_error(empty_dsn, monkeypatch):
    monkeypatch.setattr(crowd, "run", partial(_with_a_dead_one, crowd.run))
    options = ["--groups", "1", "--messages", "2000", "--partitions", "2", "--repeat", "1"]
    result = CliRunner().invoke(bench, ["fanout", "--dsn", empty_dsn, *options])
    assert isinstance(result.exception, UnavailableError), result.output
    assert schemas(empty_dsn) == set()


def _with_a_dead_one(run, jobs, meter):
    return run([*jobs, (_die, ())], meter)


def _die(_lap):
    os._exit(1)


def test_fanout__more_members_than_partitions__is_a_usage_error():
    result = CliRunner().invoke(bench, ["fanout", "--members", "3", "--partitions", "2"])
    assert result.exit_code == 2
    assert "3 members cannot share 2 partitions" in result.stderr


@pytest.mark.parametrize("option", ["--consumers=0", "--consumers=two", "--prefetch=none", "--messages=,"])
def test_scaling__an_option_that_is_no_list_of_numbers__is_a_usage_error(option):
    result = CliRunner().invoke(bench, ["scaling", option])
    assert result.exit_code == 2
    assert "wanted numbers" in result.stderr
