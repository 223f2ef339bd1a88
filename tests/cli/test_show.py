"""`messages show`: a message in each of its states."""

import json
import os
import signal

import psycopg
import pytest
from support.shell import wait_until

from coordinator import Coordinator, Outgoing


@pytest.fixture
def app(dsn):
    with Coordinator(dsn) as made:
        made.create_topic("orders", 1)
        yield made


def states(on, offset, *options):
    ended = on("messages", "show", "orders", 0, offset, "--json", *options)
    assert "Traceback" not in ended.err
    return {group["group"]: group for group in ended.json["groups"]}


def group(dsn, name, start="earliest"):
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("select coordinator.join_group(null, %s, array['orders'], %s)", (name, start))


def test_message__nobody_has_read__is_future_or_early(on, dsn, app):
    app.publish("orders", {"id": 1}, key="ada", headers={"source": "web"})
    group(dsn, "billing")
    group(dsn, "audit", "latest")
    found = states(on, 0)
    assert {name: state["state"] for name, state in found.items()} == {"audit": "early", "billing": "future"}
    ended = on("messages", "show", "orders", 0, 0)
    assert ended.code == 0
    assert any(
        line.split() == ["value:", '{"id":1}'] or '"id": 1' in line or '{"id":1}' in line for line in ended.lines
    )
    assert any(line.startswith("key:") and line.endswith("ada") for line in ended.lines)
    assert any(line.split()[:2] == ["billing", "future"] for line in ended.lines)


def test_message__payload__is_exact_in_json(on, app):
    app.publish("orders", b'{"n": 1.10, "big": 9007199254740993}')
    ended = on("messages", "show", "orders", 0, 0, "--json")
    assert b'"value": {"n": 1.10, "big": 9007199254740993}' in ended.out
    assert json.loads(ended.out)["groups"] == []


def test_message__in_the_hands_of_a_consumer__passes_its_states(on, app):
    app.publish_many("orders", [Outgoing(n, key="ada") for n in range(3)])
    with app.consumer("orders", group="billing", retry=[3600.0], max_attempts=2) as consumer:
        (first,) = wait_until(lambda: consumer.poll(max_messages=1, timeout_s=5), 30)
        assert states(on, 0)["billing"]["state"] == "open"
        first.ack(wait=True)
        assert states(on, 0)["billing"]["state"] == "settled"
        (second,) = wait_until(lambda: consumer.poll(max_messages=1, timeout_s=5), 30)
        second.nack()
        found = wait_until(
            lambda: (
                (consumer.poll(timeout_s=0.05), states(on, 1)["billing"])[1]["state"] == "waiting"
                and states(on, 1)["billing"]
            ),
            30,
        )
        assert (found["fails"], len(found["errors"])) == (1, 1)
        assert found["client_id"]
        assert found["next_at"] > found["since"]
        shown = on("messages", "show", "orders", 0, 1, "--group", "billing")
        assert any(line.startswith("attempt 1: ") for line in shown.lines)
        consumer.commit()
    with app.consumer("orders", group="other") as consumer:
        (first,) = wait_until(lambda: consumer.poll(max_messages=1, timeout_s=5), 30)
        first.reject("not for us")
        wait_until(lambda: (consumer.poll(timeout_s=0.05), states(on, 0)["other"]["state"] == "dead")[1], 30)
    dead = states(on, 0)["other"]
    assert (dead["reason"], dead["error"]) == ("rejected", "not for us")


def test_message__skipped__says_why(on, app, dsn):
    app.publish("orders", 1)
    group(dsn, "billing")
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "insert into coordinator.skips (group_id, topic_id, partition, offsets, reason, at) "
            "select group_id, topic_id, partition, '{[0,1)}', 'retention', now() from coordinator.claims"
        )
    found = states(on, 0)["billing"]
    assert (found["state"], found["reason"]) == ("skipped", "retention")


def test_message__acked_in_a_handlers_transaction_and_not_folded__is_settled(on, app, dsn):
    app.publish("orders", 1)
    group(dsn, "billing")
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "insert into coordinator.acks select group_id, topic_id, partition, 0, 0, 1 from coordinator.claims"
        )
    assert states(on, 0)["billing"]["state"] == "settled"


def test_offset__without_a_message__is_a_finding(on, dsn, app):
    with psycopg.connect(dsn) as connection:
        app.publish("orders", 1, connection=connection)
        connection.rollback()
    app.publish("orders", 2)
    group(dsn, "billing")
    ended = on("messages", "show", "orders", 0, 0)
    assert ended.code == 1
    assert "no message at orders/0/0" in ended.err
    assert on("messages", "show", "orders", 0, 0, "--json").json["message"] is None


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("missing", 0, 0), "missing"),
        (("orders", 7, 0), "7"),
        (("orders", 0, 0, "--group", "nobody"), "nobody"),
        (("orders", 0, 2**63), "9223372036854775808"),
        (("orders", 2**31, 0), "2147483648"),
    ],
)
def test_show__unknown__is_told(on, app, arguments, word):
    ended = on("messages", "show", *arguments)
    assert (ended.code, ended.out) == (2, b"")
    assert word in ended.err


def test_show__watched__ends_by_ctrl_c(start, dsn, app):
    app.publish("orders", 1)
    process = start("messages", "show", "orders", 0, 0, "--json", "--watch", "0.1", "--dsn", dsn)
    for _ in range(2):
        assert json.loads(process.stdout.readline())["message"]["offset"] == 0
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 0
