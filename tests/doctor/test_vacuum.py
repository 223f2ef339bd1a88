"""Who holds a snapshot, and dead rows."""

import time

import psycopg
from support.shell import wait_until

from coordinator.doctor import Limits, examine, vacuum
from coordinator.doctor.report import Notes
from coordinator.protocol.doctor import Place, Snapshot

PLACE = Place("me", "shop", "UTF8", 160000, False, "me", True, True, True)


def test_session__holds_a_snapshot__is_named_with_its_application(find, dsn):
    with psycopg.connect(dsn, application_name="nightly report") as other:
        other.execute("set transaction isolation level repeatable read")
        ((pid,),) = other.execute("select pg_backend_pid()").fetchall()
        (finding,) = find("snapshots")
        assert f"nightly report (pid {pid})" == finding.subject
        assert f"pg_terminate_backend({pid})" in finding.advice
        assert find("snapshots", limits=Limits()) == []
    assert find("snapshots") == []


def test_session__of_another_database__holds_nothing_of_ours(find, server):
    with psycopg.connect(server.dsn) as other:
        other.execute("set transaction isolation level repeatable read")
        other.execute("select 1")
        assert find("snapshots") == []


def test_session__advice_followed__is_gone(find, connection, dsn):
    other = psycopg.connect(dsn)
    other.execute("set transaction isolation level repeatable read")
    other.execute("select 1")
    (finding,) = find("snapshots")
    connection.execute(finding.advice.partition(" with ")[2])
    wait_until(lambda: not find("snapshots"), 30)
    other.close()


def test_prepared_transaction__forgotten__is_an_error(find, connection, dsn):
    gid = f"forgotten-{connection.info.dbname}"
    with psycopg.connect(dsn, autocommit=True) as other:
        other.execute("create table mine (id int)")
        other.execute("begin")
        other.execute("insert into mine values (1)")
        other.execute(f"prepare transaction '{gid}'")
    try:
        (finding,) = find("snapshots")
        assert (finding.subject, finding.severity) == (gid, "error")
    finally:
        connection.execute(f"rollback prepared '{gid}'")
    assert find("snapshots") == []


def test_standby_and_slot__hold_an_old_snapshot__are_found():
    now = None
    holders = [
        Snapshot("walsender", "77", "replica", 2_000_000, None),
        Snapshot("replication slot", "gone", "inactive", 3_000_000, None),
        Snapshot("replication slot", "fresh", "active", 10, None),
    ]
    notes = Notes("snapshots")
    vacuum.snapshots(notes, holders, PLACE, now, Limits())
    assert [finding.subject for finding in notes.findings] == ["replica (pid 77)", "gone"]
    assert "pg_drop_replication_slot('gone')" in notes.findings[1].advice


def test_ordinary_role__other_roles_sessions__are_told_as_not_checked(ordinary):
    report = examine(ordinary, "coordinator", only=["snapshots"])
    assert report.ok
    assert "pg_monitor" in report.skipped[0].reason


def test_ordinary_role__in_pg_monitor__sees_them(connection, ordinary, find, dsn):
    role = psycopg.conninfo.conninfo_to_dict(ordinary)["user"]
    connection.execute(f"grant pg_monitor to {role}")
    with psycopg.connect(dsn, application_name="nightly report") as other:
        other.execute("set transaction isolation level repeatable read")
        other.execute("select 1")
        assert len(find("snapshots", at=ordinary)) == 1


def test_dead_rows__many_more_than_autovacuum_leaves__are_found(find, connection):
    connection.execute(
        "alter table coordinator.crashes set (autovacuum_enabled = off, autovacuum_vacuum_threshold = 1)"
    )
    connection.execute("alter table coordinator.crashes set (autovacuum_vacuum_scale_factor = 0)")
    connection.execute(
        "insert into coordinator.crashes select 1, 1, n, 1, gen_random_uuid(), '{}', false, now() from generate_series(1, 200) n"
    )
    connection.execute("delete from coordinator.crashes")

    def counted():
        # A session reports its counts when it is idle, at most once a second.
        time.sleep(0.1)
        connection.execute("select pg_stat_force_next_flush()")
        return find("dead-rows")

    (finding,) = wait_until(counted, 30)
    assert (finding.subject, "200 dead rows" in finding.found) == ("crashes", True)
    connection.execute("vacuum coordinator.crashes")
    wait_until(lambda: not counted(), 30)
