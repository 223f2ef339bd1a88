"""Retention from outside: what maintain and consumers do, with a dump under way, and when they are killed in between."""

import logging
from functools import partial

import psycopg
import pytest
from support.shell import TOPIC, wait_until

from coordinator import Coordinator
from coordinator.db import upkeep
from coordinator.db.exchange import run_alone
from coordinator.db.upkeep import Upkeep
from coordinator.maintenance import detaching
from coordinator.maintenance.detaching import detach_blocked

LIMIT_S = 90


@pytest.fixture
def connection(dsn):
    with psycopg.connect(dsn, autocommit=True) as made:
        yield made


@pytest.fixture
def app(dsn):
    """Topic `orders` with ten messages in a segment that is due to be closed by its age."""
    with Coordinator(dsn) as made:
        made.create_topic("orders", retention_s=3600, segment_max_age_s=60)
        for value in range(10):
            made.publish("orders", value)
        yield made


def move_clock(connection, seconds):
    connection.execute(
        "create or replace function coordinator.now_() returns timestamptz language sql volatile as "
        f"$$ select clock_timestamp() + interval '{seconds} s' $$"
    )


def retired(connection):
    return connection.execute("select s.segment from coordinator.segments s where s.retired_at is not null").fetchall()


def closed(connection):
    return connection.execute("select s.segment from coordinator.segments s where s.closed_at is not null").fetchall()


def consume(app, count):
    with app.consumer("orders", group="slow") as consumer:
        for got, message in enumerate(consumer, 1):
            message.ack(wait=True)
            if got == count:
                return


def test_maintain__a_topic_grows_old__rotates_retires_and_drops(app, connection):
    move_clock(connection, 100)
    assert app.maintain(once=True).rotated == 1
    consume(app, 10)
    move_clock(connection, 100 + 4000)
    done = app.maintain(once=True)
    assert (done.retired, done.dropped) == (1, 0)
    move_clock(connection, 100 + 4020)
    done = app.maintain(once=True)
    assert (done.retired, done.dropped, done.failed_tasks) == (0, 1, 0)
    topic = app.topic("orders")
    assert (topic.first_segment, topic.segment, topic.first_offsets) == (2, 2, (10,))
    assert {
        task for (task,) in connection.execute("select m.task from coordinator.maintenance m where m.error is null")
    } == {
        "publishing",
        "trim",
        *(name for name, _ in upkeep.TASKS),
    }


def test_maintain__group_has_not_read__keeps_every_message(app, connection):
    consume(app, 3)
    move_clock(connection, 100)
    app.maintain(once=True)
    move_clock(connection, 10**6)
    for _ in range(2):
        done = app.maintain(once=True)
    assert (done.retired, done.dropped, done.skipped) == (0, 0, 0)
    consume(app, 7)
    assert app.maintain(once=True).retired == 1


def test_maintain__unconsumed_drop__skips_and_says_so_loudly(app, connection, caplog):
    connection.execute("select coordinator.alter_topic('orders', '{\"unconsumed\": \"drop\"}')")
    consume(app, 3)
    move_clock(connection, 100)
    app.maintain(once=True)
    move_clock(connection, 10**6)
    with caplog.at_level(logging.INFO, "coordinator"):
        done = app.maintain(once=True)
    assert (done.skipped, done.retired) == (1, 1)
    (told,) = [record for record in caplog.records if record.msg == "messages.skipped"]
    assert (told.levelno, told.topic, told.group, told.partition, told.offsets) == (
        logging.ERROR,
        "orders",
        "slow",
        0,
        "{[3,10)}",
    )
    app.publish("orders", "new")
    with app.consumer("orders", group="slow") as consumer:
        message = next(iter(consumer))
        assert message.offset == 10
        message.ack()


def test_maintain__killed_after_each_statement__the_next_one_finishes(app, connection):
    consume(app, 10)
    move_clock(connection, 100)
    run = partial(run_alone, connection, "coordinator")
    for statements in range(1, 12):
        killed = Upkeep(first_after_s=0.0)
        for _ in range(statements):
            killed._advance(run)
        move_clock(connection, 100 + 4000 * statements)
    app.maintain(once=True)
    names = connection.execute("select relname from pg_class where relname ~ '^topic_1_s[0-9]+$'").fetchall()
    assert names == [("topic_1_s2",)]
    app.publish("orders", "new")
    consume(app, 1)


def test_maintain__a_dump_is_under_way__waits_for_nobody_and_drops_when_it_is_over(
    app, connection, dsn, caplog, monkeypatch
):
    monkeypatch.setattr(detaching, "LIMIT_S", 0.5)
    consume(app, 10)
    move_clock(connection, 100)
    app.maintain(once=True)
    move_clock(connection, 100 + 4000)
    app.maintain(once=True)
    assert retired(connection) == [(1,)]
    with psycopg.connect(dsn, application_name="pg_dump") as dump:
        # As pg_dump does: one snapshot, and a lock on each table.
        dump.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        dump.execute("lock table coordinator.topic_1, coordinator.topic_1_s1 in access share mode")
        move_clock(connection, 100 + 4020)
        with caplog.at_level(logging.INFO, "coordinator"):
            done = app.maintain(once=True)
        assert (done.dropped, done.blocked) == (0, 1)
        assert any(r.msg == "segment.blocked" and "pg_dump" in str(r.blocked_by) for r in caplog.records)
        # The detach was begun and cut off: no reader or publisher is in its way, nor it in theirs.
        assert connection.execute(
            "select i.inhdetachpending from pg_inherits i where i.inhdetachpending"
        ).fetchall() == [(True,)]
        app.publish("orders", "meanwhile")
        consume(app, 1)
        # What the dump has locked it can read to its end.
        assert dump.execute("select count(*) from coordinator.topic_1_s1").fetchone() == (10,)
    done = app.maintain(once=True)
    assert (done.dropped, done.blocked) == (1, 0)
    assert not connection.execute("select from pg_inherits i where i.inhdetachpending").fetchall()


def test_detach__always_somebody_on_the_topic__detaches_and_then_drops(app, connection, dsn):
    consume(app, 10)
    move_clock(connection, 100)
    app.maintain(once=True)
    move_clock(connection, 100 + 4000)
    app.maintain(once=True)
    move_clock(connection, 100 + 4020)
    run = partial(run_alone, connection, "coordinator")
    with psycopg.connect(dsn) as first, psycopg.connect(dsn) as second:
        first.execute("lock table only coordinator.topic_1 in access share mode")
        blocked = Upkeep().round(run).blocked
        assert [(one.topic, one.segment) for one in blocked] == [("orders", 1)]
        first.rollback()
        detach_blocked(connection, "coordinator", blocked)
        # Another one came meanwhile: it is on the topic, and no more on the segment.
        second.execute("lock table only coordinator.topic_1 in access share mode")
        assert [one.segment for one in Upkeep().round(run).dropped] == [1]


@pytest.fixture
def running(make_shell, connection, monkeypatch):
    """A shell of either kind with short rounds that has handled ten messages of a topic with retention."""
    monkeypatch.setattr(upkeep, "ROUND_EVERY_S", 0.2)
    shell = make_shell()
    shell.app.alter_topic(TOPIC, retention_s=3600, segment_max_age_s=60)
    values = []
    shell.subscribe(lambda message: values.append(message.value))
    for value in range(10):
        shell.app.publish(TOPIC, value)
    with shell:
        wait_until(lambda: sorted(values) == list(range(10)), LIMIT_S)
        yield shell, values


def age(connection, table, column, seconds):
    connection.execute(f"update coordinator.{table} set {column} = {column} - interval '{seconds} s'")


def test_consumer__runs__does_what_maintain_does(running, connection):
    shell, values = running
    age(connection, "segments", "created_at", 100)
    # Not the topic's segment: that is a sequence, which shows before the commit in which the old one is closed.
    wait_until(lambda: closed(connection), LIMIT_S)
    age(connection, "segments", "closed_at", 4000)
    wait_until(lambda: retired(connection), LIMIT_S)
    age(connection, "segments", "retired_at", 20)
    wait_until(lambda: not retired(connection), LIMIT_S)
    tables = connection.execute("select c.relname from pg_class c where c.relname ~ '^topic_1_s[0-9]+$'").fetchall()
    assert tables == [("topic_1_s2",)]
    shell.app.publish(TOPIC, "new")
    wait_until(lambda: "new" in values, LIMIT_S)


def test_consumer__a_task_of_upkeep_fails__says_so_and_does_the_others(running, connection, caplog):
    """What one task meets must end neither the round nor the control loop. Mutant: an error that passes through."""
    shell, values = running
    connection.execute(
        "create or replace function coordinator.rotate_due(out added int, out opened int, out failed int) "
        "language plpgsql as $$ begin perform 1 / 0; end $$"
    )
    wait_until(lambda: "maintenance.failed" in [record.msg for record in caplog.records], LIMIT_S)
    wait_until(lambda: connection.execute("select 1 from coordinator.maintenance m where m.task = 'sweep'").fetchone())
    before = swept_at(connection)
    age(connection, "maintenance", "succeeded_at", 100)
    wait_until(lambda: swept_at(connection) > before, LIMIT_S)
    assert connection.execute("select m.error from coordinator.maintenance m where m.task = 'rotate'").fetchone() != (
        None,
    )
    shell.app.publish(TOPIC, "new")
    wait_until(lambda: "new" in values, LIMIT_S)
    assert shell.failure is None


def swept_at(connection):
    (at,) = connection.execute("select m.succeeded_at from coordinator.maintenance m where m.task = 'sweep'").fetchone()
    return at


def test_delete_topic__a_segment_is_detached_and_not_dropped__takes_it_along(app, connection):
    consume(app, 10)
    move_clock(connection, 100)
    app.maintain(once=True)
    move_clock(connection, 100 + 4000)
    app.maintain(once=True)
    (command,) = connection.execute("select coordinator.detach_command('orders', 1)").fetchone()
    connection.execute(command)
    connection.execute("select coordinator.delete_topic('orders', true)")
    connection.execute("select coordinator.drop_remains()")
    assert connection.execute("select relname from pg_class where relname ~ '^topic_1'").fetchall() == []


def test_sweep__old_rows__go(app, connection):
    consume(app, 10)
    move_clock(connection, 5000)
    connection.execute("update coordinator.groups set expire_s = 100, on_expiry = 'delete'")
    run = partial(run_alone, connection, "coordinator")
    swept = Upkeep().round(run).swept
    assert swept.deleted_groups == ()
    assert connection.execute("select g.unused_since is not null from coordinator.groups g").fetchone() == (True,)
    move_clock(connection, 6000)
    assert Upkeep().round(run).swept.deleted_groups == ("slow",)
    assert connection.execute("select count(*) from coordinator.progress").fetchone() == (0,)
