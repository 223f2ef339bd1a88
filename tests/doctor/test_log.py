"""Sequences, segments, open publishers, upkeep: each caused, found also by an ordinary role, and gone when it is mended."""

import psycopg
import pytest
from support.shell import wait_until

from coordinator.doctor import Limits


def test_sequence__behind_its_messages__is_an_error(app, find, connection, ordinary):
    for _ in range(5):
        app.publish("orders", 1, partition=1)
    connection.execute("select setval('coordinator.topic_1_p1', 2)")
    for at in ({}, {"at": ordinary}):
        (finding,) = find("sequences", **at)
        assert (finding.subject, finding.severity) == ("orders/1", "error")
        assert "is at 2, but there is a message 4" in finding.found
    connection.execute("select setval('coordinator.topic_1_p1', 4)")
    assert find("sequences") == []


def test_sequence__behind_messages_of_an_older_segment__is_found(app, find, connection):
    app.publish("orders", 1, partition=0)
    app.rotate("orders")
    connection.execute("select setval('coordinator.topic_1_p0', 0, false)")
    assert [finding.subject for finding in find("sequences")] == ["orders/0"]


@pytest.mark.parametrize("change", ["cache 10", "increment by 2"])
def test_sequence__hands_out_in_another_way__is_an_error(app, find, connection, change):
    connection.execute(f"alter sequence coordinator.topic_1_p0 {change}")
    (finding,) = find("sequences")
    assert finding.severity == "error"
    connection.execute(finding.advice)
    assert find("sequences") == []


def test_segment__current_one_does_not_exist__is_an_error(app, find, connection, ordinary):
    connection.execute("select setval('coordinator.topic_1_segment', 7)")
    assert len(find("segments", at=ordinary)) == 1
    (finding,) = find("segments")
    assert "7" in finding.found


def test_segment__detach_cut_off__is_an_error_until_it_is_finished(app, find, connection, dsn):
    app.rotate("orders")
    with psycopg.connect(dsn) as reader:
        reader.execute("set transaction isolation level repeatable read")
        reader.execute("select count(*) from coordinator.topic_1")
        connection.execute("set lock_timeout = '300ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            connection.execute("alter table coordinator.topic_1 detach partition coordinator.topic_1_s1 concurrently")
    (finding,) = find("segments")
    assert finding.subject == "orders"
    connection.execute(finding.advice.partition(";")[0])
    assert find("segments") == []


def test_publisher__leaves_its_transaction_open__is_named(app, find, dsn, ordinary):
    with psycopg.connect(dsn, application_name="importer") as other:
        app.publish("orders", 1, partition=1, connection=other)
        (finding,) = find("publishers")
        assert finding.subject == "orders/1"
        assert "importer" in finding.found
        assert find("publishers", limits=Limits()) == []
        assert len(find("publishers", at=ordinary)) == 1
    assert find("publishers") == []


def test_publisher__prepared_and_forgotten__is_found(app, find, connection, dsn):
    gid = f"published-{connection.info.dbname}"
    with psycopg.connect(dsn, autocommit=True) as other:
        other.execute("begin")
        app.publish("orders", 1, partition=1, wake=False, connection=other)
        other.execute(f"prepare transaction '{gid}'")
    try:
        (finding,) = find("publishers", limits=Limits())
        assert "prepared" in finding.found
    finally:
        connection.execute(f"rollback prepared '{gid}'")


def test_scheduled_messages__nobody_moves_them__is_an_error(app, find, connection, ordinary):
    app.publish("orders", 1, delay_s=3600)
    assert find("upkeep") == []
    connection.execute("update coordinator.scheduled set next_at = now() - interval '2 minutes'")
    for at in ({}, {"at": ordinary}):
        (finding,) = find("upkeep", limits=Limits(), **at)
        assert (finding.subject, finding.severity) == ("orders", "error")
    app.maintain(once=True)
    assert find("upkeep") == []


def test_dedup_keys__nobody_expires_them__is_found(app, find, connection):
    app.publish("orders", 1, dedup_key="a")
    connection.execute("update coordinator.dedup set expires_at = now() - interval '2 minutes'")
    (finding,) = find("upkeep", limits=Limits())
    assert "1 dedup keys have expired" in finding.found
    app.maintain(once=True)
    assert find("upkeep") == []


def test_scheduled_messages__topic_refuses_them__is_found(dsn, find, connection, app):
    app.create_topic("full", 1, max_backlog=1)
    connection.execute("select coordinator.join_group(null, 'slow', array['full'], 'earliest')")
    app.publish("full", 1)
    app.publish("full", 2, delay_s=3600)
    connection.execute("update coordinator.scheduled set due_at = now(), next_at = now()")
    app.maintain(once=True)
    assert [finding.subject for finding in find("upkeep") if "refused" in finding.found] == ["full"]


def test_process__dead_and_nobody_says_so__is_found(find, connection):
    connection.execute("select coordinator.register(gen_random_uuid(), 'shop', 'host', 42, 0.001)")
    (finding,) = wait_until(lambda: find("upkeep"), 30)
    assert finding.subject == "shop@host pid 42"
    connection.execute("select coordinator.reap(1000)")
    assert find("upkeep") == []


def test_maintenance__task_that_fails__is_an_error_with_its_reason(app, find, connection):
    app.maintain(once=True)
    assert find("upkeep") == []
    connection.execute("update coordinator.maintenance set error = '42501 no right' where task = 'publishing'")
    (finding,) = find("upkeep", limits=Limits())
    assert (finding.subject, finding.severity) == ("task publishing", "error")
    assert "42501 no right" in finding.found


def test_maintenance__nobody_does_it__is_found(app, find):
    (finding,) = find("upkeep", limits=Limits(max_maintenance_age_s=0))
    assert finding.subject == "maintenance"
    assert find("upkeep", limits=Limits(max_maintenance_age_s=60)) == []
