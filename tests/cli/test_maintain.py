"""`coordinator maintain`: once, and until a signal."""

import signal
import time
from uuid import uuid4

import psycopg

from coordinator import Coordinator

LIMIT_S = 30


def test_maintain__once__publishes_what_is_due_and_tells_it(on, dsn):
    with Coordinator(dsn) as app:
        app.create_topic("orders")
        app.publish("orders", 1, delay_s=0.01)
        app.publish("orders", 2, delay_s=3600)
    time.sleep(0.05)
    done = on("maintain", "--once", "--json").json
    assert (done["moved"], done["failed"], done["expired"]) == (1, 0, 0)
    assert on("maintain", "--once").lines == [
        "0 messages published, 0 failed, 0 dedup keys forgotten",
        "segments: 0 opened, 0 retired, 0 dropped, 0 locked; 0 partitions skipped, 0 tasks failed",
    ]


def test_maintain__a_message_fails__is_a_finding(on, dsn):
    with Coordinator(dsn) as app, psycopg.connect(dsn, autocommit=True) as connection:
        app.create_topic("orders")
        app.publish("orders", "long", delay_s=0.01)
        connection.execute("update coordinator.topics set max_message_bytes = 1")
    time.sleep(0.05)
    ended = on("maintain", "--once", "--json")
    assert (ended.code, ended.json["moved"], ended.json["failed"]) == (1, 0, 1)


def test_maintain__until_sigterm__publishes_when_due_and_ends_with_0(start, dsn, monkeypatch):
    monkeypatch.setenv("COORDINATOR_DSN", dsn)
    with Coordinator(dsn) as app:
        app.create_topic("orders")
        process = start("maintain")
        app.publish("orders", 1, delay_s=0.2)
        deadline_s = time.monotonic() + LIMIT_S
        while not app.peek("orders"):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == 0


def test_maintain__a_member_died_and_nobody_consumes__is_declared_dead_after_a_lease(start, dsn, monkeypatch):
    monkeypatch.setenv("COORDINATOR_DSN", dsn)
    me = uuid4()
    with Coordinator(dsn) as app, psycopg.connect(dsn, autocommit=True) as connection:
        app.create_topic("orders")
        connection.execute("select coordinator.register(%s, 'c', 'h', 1, 1)", (me,))
        connection.execute("select coordinator.join_group(%s, 'g', '{orders}', 'earliest', null)", (me,))
        process = start("maintain")
        deadline_s = time.monotonic() + LIMIT_S
        while not [one for one in app.members(dead=True) if one.state == "dead"]:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        assert app.group_members("g") == []
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == 0


def test_topics_create__window_and_limit__are_shown(on):
    on("topics", "create", "orders", "--dedup-window-s", 60, "--max-backlog", 1000)
    facts = on("topics", "describe", "orders", "--json").json
    assert (facts["dedup_window_s"], facts["max_backlog"]) == (60, 1000)
    assert "MAX-BACKLOG" in on("topics", "describe", "orders").text
    assert on("topics", "create", "other", "--max-backlog", 0).code == 2
