"""The exercises: each trouble is caused through the public interface, shows where docs/runbooks.md says, and ends by what it says."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import psycopg
import pytest
from support.shell import short, wait_until

from coordinator import Coordinator, Outgoing
from coordinator.doctor import Limits, examine

AT_ONCE = Limits(max_snapshot_age_s=0, max_idle_s=0, max_stuck_s=0, max_late_s=0, max_dead_letters_used=0.5)


@pytest.fixture
def app(dsn):
    with Coordinator(dsn, settings=short()) as made:
        made.create_topic("orders", 1)
        yield made


@pytest.fixture
def told(dsn):
    """What doctor says by one of its checks."""

    def ask(check):
        return [finding.subject for finding in examine(dsn, "coordinator", only=[check], limits=AT_ONCE).findings]

    return ask


def read(app, group="billing", count=1):
    """Read and ack so many messages as a member of the group, and leave."""
    seen = []
    with app.consumer("orders", group=group) as consumer:
        while len(seen) < count:
            for message in consumer.poll(timeout_s=30):
                seen.append(message.value)
                message.ack()
        consumer.commit()
    return seen


def test_lag_grows__more_processes__catch_up(on, app):
    app.publish_many("orders", [Outgoing(n) for n in range(30)])
    read(app, count=1)
    app.publish_many("orders", [Outgoing(n) for n in range(30)])
    assert on("lag", "billing", "--max-lag", "10").code == 1
    assert on("health", "--group", "billing", "--max-lag", "10").code == 1
    while on("lag", "billing", "--max-lag", "0").code:
        read(app, count=1)
    assert on("lag", "billing", "--max-lag", "0").code == 0


def test_consumer_stuck_in_a_handler__restarted__the_message_goes_on(on, app, dsn, told):
    app.publish("orders", 1)
    entered, released = threading.Event(), threading.Event()
    with Coordinator(dsn, settings=short(drain_timeout_s=0.5)) as stuck:

        @stuck.subscribe("orders", group="billing")
        def hang(_message):
            entered.set()
            released.wait(60)

        running = threading.Thread(target=stuck.run, kwargs={"install_signal_handlers": False})
        running.start()
        assert entered.wait(30)
        wait_until(lambda: told("stuck") == ["billing on orders"], 30)
        (row,) = on("sql", "query", "in-flight", "--json").objects
        assert (row["group"], row["first_offset"]) == ("billing", 0)
        assert stuck.status() is not None
        stuck.stop()
        running.join(30)
        assert read(app) == [1]
        released.set()
    assert told("stuck") == []


def test_owner_dead__another_process__takes_over(on, app, dsn, told):
    app.publish("orders", 1)
    program = (
        "import sys, time; sys.path.insert(0, 'tests')\n"
        "from support.shell import short\n"
        "from coordinator import Coordinator\n"
        "consumer = Coordinator(sys.argv[1], settings=short()).consumer('orders', group='billing')\n"
        "print(consumer.poll(timeout_s=30), flush=True)\n"
        "time.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, dsn], stdout=subprocess.PIPE)
    assert process.stdout.readline()
    assert "1 member," in on("groups", "describe", "billing").text
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    process.stdout.close()
    wait_until(lambda: len(told("upkeep")) == 1, 30)
    assert read(app) == [1]
    assert told("upkeep") == []
    assert on("lag", "billing", "--max-lag", "0").code == 0


def test_dead_letters_fill__cause_mended_and_replayed__are_gone(on, app, told):
    app.publish_many("orders", [Outgoing(n) for n in range(5)])
    with app.consumer("orders", group="billing") as consumer:
        seen = 0
        while seen < 5:
            for message in consumer.poll(timeout_s=30):
                seen += 1
                message.reject("the bank is down")
        consumer.commit()
    assert "the bank is down" in on("dlq", "stats", "billing").text
    assert on("health", "--group", "billing", "--max-dead-letters", "0").code == 1
    (cause,) = on("sql", "query", "what-fails-most", "--json").objects
    assert (cause["error"], cause["dead_letters"]) == ("the bank is down", 5)
    app.dead_letters("billing").set_max(8)
    assert told("dead-letters") == ["billing"]
    assert on("dlq", "replay", "billing", "--error", "bank", "--yes").code == 0
    assert told("dead-letters") == []
    assert sorted(read(app, count=5)) == list(range(5))


def test_key_blocked__its_head_skipped__flows(on, dsn, app, told):
    app.publish_many("orders", [Outgoing(n, key="ada") for n in range(20)])
    with Coordinator(dsn, settings=short(prefetch=4)) as reader:
        with reader.consumer("orders", group="billing", retry=[3600.0]) as consumer:
            for message in wait_until(lambda: consumer.poll(max_messages=1, timeout_s=5), 30):
                message.nack()
            wait_until(lambda: (consumer.poll(timeout_s=0.05), told("blocked-keys"))[1], 30)
        (row,) = on("sql", "query", "blocked-keys", "--json").objects
        assert (row["key"], row["failing_offset"]) == ("ada", 0)
        skipped = on(
            "groups", "skip", "billing", "orders", 0, row["failing_offset"], "--execute", "--reason", "runbook"
        )
        assert skipped.code == 0, skipped.err
        assert sorted(read(reader, count=19)) == list(range(1, 20))
    assert told("blocked-keys") == []
    assert on("messages", "show", "orders", 0, 0, "--json").json["groups"][0]["state"] == "skipped"


def test_long_snapshot__its_session_ended__is_gone(on, app, dsn, told):
    reader = psycopg.connect(dsn, application_name="nightly report")
    reader.execute("set transaction isolation level repeatable read")
    reader.execute("select 1")
    ended = on("doctor", "--check", "snapshots", "--max-snapshot-age", "0", "--json")
    (finding,) = ended.json["findings"]
    assert "nightly report" in finding["subject"]
    with psycopg.connect(dsn, autocommit=True) as operator:
        operator.execute(finding["advice"].partition(" with ")[2])
    wait_until(lambda: told("snapshots") == [], 30)
    reader.close()


def test_disk_pinned_by_a_dead_group__deleted__is_free(on, app, told):
    app.publish("orders", 1)
    with app.consumer("orders", group="forgotten") as consumer:
        consumer.poll(timeout_s=30)
    app.publish("orders", 2)
    app.rotate("orders")
    (finding,) = on("doctor", "--check", "unused-groups", "--max-idle", "0", "--json").json["findings"]
    assert "segments 1 to 1" in finding["found"]
    assert finding["advice"].endswith("coordinator groups delete forgotten")
    deleted = on("groups", "delete", "forgotten", "--yes")
    assert deleted.code == 0, deleted.err
    assert told("unused-groups") == []
