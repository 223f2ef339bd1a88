"""What metrics are read from, called straight: agreement with the tables, and what is looked at for it."""

from __future__ import annotations

import random

import psycopg
import pytest

from coordinator import Coordinator
from coordinator.observe import metrics

GROUP, TOPIC = "ledger", "orders"


@pytest.fixture
def app(dsn):
    with Coordinator(dsn) as made:
        made.create_topic(TOPIC, 3)
        made.consumer(TOPIC, group=GROUP).start().close()
        yield made


@pytest.fixture
def connection(dsn):
    with psycopg.connect(dsn, autocommit=True) as made:
        yield made


def test_group_gauges__any_state__lag_is_that_of_the_view_and_of_a_count(app, connection):
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    for partition in range(3):
        app.publish_many(TOPIC, range(20)) if partition == 0 else [
            app.publish(TOPIC, 0, partition=partition) for _ in range(chance.randrange(10))
        ]
    with app.consumer(TOPIC, group=GROUP, ordering="none") as consumer:
        while batch := consumer.poll(50, 0.5):
            for message in batch:
                outcome = chance.choice(("ack", "ack", "nack", "leave"))
                if outcome == "ack":
                    message.ack()
                elif outcome == "nack":
                    message.nack(delay_s=3600)
        consumer.commit()
    view = connection.execute(
        'select o.topic, o.partition, o.lag, o.parked from coordinator.offsets o where o."group" = %s order by 1, 2',
        (GROUP,),
    ).fetchall()
    gauges = app.group_gauges()
    assert [(gauge.topic, gauge.partition, gauge.lag, gauge.parked) for gauge in gauges] == view
    unsettled = connection.execute(
        "select m.partition, count(*) from coordinator.topic_1 m join lateral (select * from coordinator.progress p "
        "where p.partition = m.partition order by p.seq desc limit 1) p on true "
        'where (m."offset" >= p.committed and not p.done @> m."offset") or exists (select from coordinator.retries r '
        'where r.partition = m.partition and r."offset" = m."offset") group by m.partition'
    ).fetchall()
    assert {gauge.partition: gauge.lag for gauge in gauges if gauge.lag} == dict(unsettled)
    for gauge in gauges:
        assert (gauge.oldest_unacked_s > 0) is (gauge.lag > 0)
        assert gauge.oldest_unacked_s >= gauge.lag_s


def test_group_gauges__rotated_in_the_middle__ages_are_found_in_the_right_segment(app, connection):
    for age, value in (("3 hours", 1), ("2 hours", 2), ("1 hour", 3)):
        app.publish(TOPIC, value, partition=0)
        connection.execute(
            "update coordinator.topic_1 set published_at = now() - %s::interval where published_at > now() - interval '1 minute'",
            (age,),
        )
        app.rotate(TOPIC)
    ages = []
    with app.consumer(TOPIC, group=GROUP) as consumer:
        for _ in range(3):
            ages.append(round(app.group_gauges()[0].lag_s / 3600))
            (message,) = consumer.poll(1, 30)
            message.ack(wait=True)
    assert ages == [3, 2, 1]
    assert app.group_gauges()[0].lag_s == 0
    assert app.gauges().gauges[metrics.SEGMENTS, (TOPIC,)] == 4


def test_group_gauges__nothing_analysed__reads_progress_by_its_key(app, connection):
    connection.execute(
        "insert into coordinator.progress select p.group_id, p.topic_id, p.partition, p.seq + n, p.epoch, p.committed, p.hwm, p.done, "
        "p.oldest_seq, p.at from coordinator.progress p cross join generate_series(1, 5000) n where p.seq = "
        "(select max(q.seq) from coordinator.progress q where q.partition = p.partition)"
    )
    # In one session: what it has done is told by its next call at the latest.
    before = scans(connection)
    connection.execute("select count(*) from coordinator.group_gauges()")
    assert scans(connection) == before


def scans(connection: psycopg.Connection) -> int:
    """Sequential scans of progress that this session has made and told."""
    connection.execute("select pg_stat_force_next_flush()")
    connection.execute("select pg_stat_clear_snapshot()")
    row = connection.execute(
        "select s.seq_scan from pg_stat_all_tables s where s.relid = 'coordinator.progress'::regclass"
    ).fetchone()
    return int(row[0])


def test_server_gauges__a_snapshot_is_held__tells_its_age(dsn, connection):
    text = "select s.oldest_snapshot_s from coordinator.server_gauges() s"
    with psycopg.connect(dsn) as holder:
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select count(*) from coordinator.topics")
        (first,) = connection.execute(text).fetchone()
        (second,) = connection.execute(text).fetchone()
    assert 0 < first < second


def test_server_gauges__names__are_tables_that_are_no_messages(app, connection):
    (dead,) = connection.execute("select s.dead_tuples from coordinator.server_gauges() s").fetchone()
    assert {"progress", "claims", "retries", "dead_letters"} <= dead.keys()
    assert not [name for name in dead if name.startswith("topic_")]
