"""Offsets beyond what 32 bits, and what the float of a JSON reader, can hold: exact on every way."""

from __future__ import annotations

import json
import os

import psycopg
import pytest
from click.testing import CliRunner

from coordinator import Coordinator, Outgoing
from coordinator.cli.main import cli

# 2^53 is the last whole number below which a float has all of them.
BASES = [2**31 - 2, 2**32 - 2, 2**53 - 2, 2**62 - 2]


@pytest.fixture(params=BASES, ids=["2^31", "2^32", "2^53", "2^62"])
def base(request, dsn):
    """The first offset to be handed out; the topic is as one that had so many messages before."""
    with Coordinator(dsn) as app:
        app.create_topic("orders", 1)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("select setval('coordinator.topic_1_p0', %s)", (request.param - 1,))
        connection.execute("select coordinator.join_group(null, 'billing', array['orders'], 'latest')")
    return request.param


@pytest.fixture
def run(dsn, monkeypatch):
    for name in list(os.environ):
        if name.startswith(("COORDINATOR_", "PG")) or name == "DATABASE_URL":
            monkeypatch.delenv(name)
    monkeypatch.setenv("COORDINATOR_DSN", dsn)

    def call(*arguments):
        ended = CliRunner().invoke(cli, [str(argument) for argument in arguments])
        assert ended.exit_code == 0, ended.stderr
        return ended.stdout

    return call


def test_offsets__published_consumed_and_committed__are_exact(dsn, base):
    with Coordinator(dsn) as app:
        places = app.publish_many("orders", [Outgoing(n, key="ada") for n in range(5)])
        assert [place.offset for place in places] == list(range(base, base + 5))
        with app.consumer("orders", group="billing", retry=[3600.0]) as consumer:
            seen = []
            while len(seen) < 3:
                for message in consumer.poll(max_messages=1, timeout_s=10):
                    seen.append((message.offset, message.value))
                    if message.value == 2:
                        message.reject("no")
                    else:
                        message.ack()
            consumer.commit()
        assert seen == [(base + n, n) for n in range(3)]
        (place,) = app.group_offsets("billing")
        assert (place.current_offset, place.log_end_offset, place.lag) == (base + 3, base + 5, 2)
        (letter,) = app.dead_letters("billing").list()
        assert letter.offset == base + 2
        assert app.dead_letters("billing").get("orders", 0, base + 2).payload == b"2"
        assert app.dead_letters("billing").replay(offset=base + 2, partition=0, topic="orders").replayed == 1
        with app.consumer("orders", group="billing") as consumer:
            again = set()
            while len(again) < 3:
                for message in consumer.poll(timeout_s=10):
                    again.add(message.offset)
                    message.ack()
            consumer.commit()
        assert again == {base + 2, base + 3, base + 4}
        assert app.group_offsets("billing")[0].lag == 0


def test_offsets__in_commands__are_exact(dsn, base, run):
    with Coordinator(dsn) as app:
        app.publish_many("orders", [{"n": n} for n in range(3)])
    assert [
        json.loads(line)["offset"]
        for line in run("messages", "peek", "orders", "--offset", base, "--json").splitlines()
    ] == [
        base,
        base + 1,
        base + 2,
    ]
    assert f" {base + 1} " in run("messages", "peek", "orders", "--offset", base + 1, "--limit", 1)
    shown = json.loads(run("messages", "show", "orders", 0, base + 2, "--json"))
    assert (shown["message"]["offset"], shown["groups"][0]["state"]) == (base + 2, "future")
    assert json.loads(run("topics", "describe", "orders", "--json"))["log_end_offsets"] == [base + 3]
    assert [json.loads(line)["lag"] for line in run("lag", "--json").splitlines()] == [3]
    lines = run("messages", "consume", "orders", "--group", "billing", "--count", 2).splitlines()
    assert [json.loads(line)["offset"] for line in lines] == [base, base + 1]
    (described,) = json.loads(run("groups", "describe", "billing", "--json"))["partitions"]
    assert (described["current_offset"], described["log_end_offset"]) == (base + 2, base + 3)
    assert f" {base + 2} " in run("groups", "describe", "billing")


def test_peek__from_the_beginning__is_not_held_up_by_what_was_never_there(dsn, base):
    with Coordinator(dsn) as app:
        app.publish("orders", 1)
        assert [message.offset for message in app.peek("orders")] == [base]


def test_offsets__in_sql__are_exact(dsn, base):
    with psycopg.connect(dsn, autocommit=True) as connection:
        (offset,) = connection.execute("select p.\"offset\" from coordinator.publish('orders', '1') p").fetchone()
        assert offset == base
        row = connection.execute(
            "select o.current_offset, o.log_end_offset, o.lag from coordinator.offsets o"
        ).fetchone()
        assert row == (base, base + 1, 1)
        (row,) = connection.execute(
            "select m.\"offset\" from coordinator.show_messages('orders', 0, %s) m", (base,)
        ).fetchall()
        assert row == (base,)
        high, last = connection.execute(
            "select e.high, e.last_message from coordinator.examine_partitions() e"
        ).fetchone()
        assert (high, last) == (base, base)
