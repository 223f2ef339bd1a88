"""The schema is what sql/ makes, and doctor says where it is not."""

import psycopg
import pytest

from coordinator.db.schema import alembic_dir, newest_revision
from coordinator.doctor import CHECKS, examine


def subjects(findings):
    return {finding.subject for finding in findings}


@pytest.mark.direct("the pooler is a finding")
def test_fresh_installation__all_checks__finds_nothing(dsn, app):
    report = examine(dsn, "coordinator")
    assert report.findings == ()
    assert report.skipped == ()
    assert report.checked == tuple(CHECKS)


@pytest.mark.direct("the pooler is a finding")
def test_installation_under_another_name__finds_nothing(empty_dsn):
    from coordinator.db.schema import install

    install(empty_dsn, "shop_log")
    report = examine(empty_dsn, "shop_log")
    assert (report.findings, report.skipped) == ((), ())


def test_two_installations_in_one_database__each_by_itself(dsn, find, connection):
    from coordinator.db.schema import install

    install(dsn, "shop_log")
    connection.execute("create or replace function shop_log.now_() returns timestamptz language sql as 'select now()'")
    assert find("functions") == []
    assert find("drift") == []
    assert subjects(examine(dsn, "shop_log", only=["functions"]).findings) == {"function now_"}


@pytest.mark.direct("the pooler is a finding")
def test_ordinary_role__fresh_installation__finds_nothing_and_says_what_it_cannot_see(app, ordinary):
    report = examine(ordinary, "coordinator")
    assert report.findings == ()
    assert {skipped.check for skipped in report.skipped} == {"version", "drift", "snapshots"}
    assert all(skipped.reason for skipped in report.skipped)


def test_doctor__leaves_nothing_behind(dsn, connection):
    schemas = "select nspname from pg_namespace order by 1"
    before = connection.execute(schemas).fetchall()
    examine(dsn, "coordinator")
    assert connection.execute(schemas).fetchall() == before


def test_schema__not_installed__is_the_only_finding(empty_dsn):
    report = examine(empty_dsn, "coordinator")
    (finding,) = report.findings
    assert (finding.check, finding.severity) == ("version", "error")
    assert "coordinator db upgrade" in finding.advice


def test_schema__of_a_newer_protocol__says_what_to_upgrade(dsn, connection):
    connection.execute(
        "create or replace function coordinator.protocol_version() returns int language sql immutable as 'select 99'"
    )
    (finding,) = examine(dsn, "coordinator").findings
    assert "protocol 99" in finding.found
    assert "pg-coordinator" in finding.advice


def test_role_without_usage__is_told_which_right(dsn, ordinary, connection):
    role = psycopg.conninfo.conninfo_to_dict(ordinary)["user"]
    connection.execute(f"revoke usage on schema coordinator from {role}")
    (finding,) = examine(ordinary, "coordinator").findings
    assert "grant usage on schema coordinator" in finding.advice


def test_revision__not_the_newest__is_found(find, connection):
    connection.execute("update coordinator.schema_revision set version_num = '0001'")
    (finding,) = find("version")
    assert finding.advice == "coordinator db upgrade"
    assert newest_revision(alembic_dir()) in finding.found


@pytest.mark.parametrize(
    ("change", "subject"),
    [
        ("create or replace function coordinator.now_() returns timestamptz language sql as 'select now()'", "now_"),
        ("drop function coordinator.peek(text, int, bigint, int)", "peek"),
    ],
)
def test_function__changed_by_hand__is_found_by_any_role(dsn, find, connection, ordinary, change, subject):
    connection.execute(change)
    assert subjects(find("functions")) == {f"function {subject}"}
    assert subjects(find("functions", at=ordinary)) == {f"function {subject}"}


@pytest.mark.parametrize(
    "change",
    [
        "alter table coordinator.claims reset (fillfactor)",
        "alter table coordinator.progress set (autovacuum_enabled = off)",
        "alter table coordinator.topics set (fillfactor = 77)",
        "drop table coordinator.targets cascade",
    ],
)
def test_storage_settings__changed__are_found_by_any_role(find, connection, ordinary, change):
    connection.execute(change)
    assert len(find("storage", at=ordinary)) == 1
    (finding,) = find("storage")
    assert finding.subject == f"table {change.split('.')[1].split()[0]}"


@pytest.mark.parametrize(
    ("change", "subject"),
    [
        ("alter table coordinator.topics alter max_message_bytes set default 5", "column topics.max_message_bytes"),
        ("alter table coordinator.topics alter wake drop not null", "column topics.wake"),
        ("alter table coordinator.retries drop constraint retries_pkey", "index retries_pkey"),
        ("drop index coordinator.retries_due_idx", "index retries_due_idx"),
        ("alter function coordinator.peek(text, int, bigint, int) stable", "function peek"),
        ("alter function coordinator.peek(text, int, bigint, int) reset search_path", "function peek"),
        ("alter function coordinator.peek(text, int, bigint, int) security invoker", "function peek"),
        ("alter sequence coordinator.topic_ids cache 5", "sequence topic_ids"),
        ("drop view coordinator.scheduled_messages", "view scheduled_messages"),
        (
            "create rule quiet as on delete to coordinator.groups do instead nothing",
            "holds what is not ours: rule groups.quiet",
        ),
        ("create table coordinator.mine (id int)", "holds what is not ours: column mine.id, table mine"),
    ],
)
def test_catalogue__one_thing_changed__is_found(find, app, connection, change, subject):
    connection.execute(change)
    assert any(subject in f"{finding.subject} {finding.found}" for finding in find("drift")), find("drift")


def test_catalogue__topics_and_segments__are_no_drift(find, app):
    app.rotate("orders")
    app.create_topic("more", 3)
    assert find("drift") == []


def test_default_privileges__on_tables__are_found(find, connection, ordinary):
    connection.execute("alter default privileges in schema coordinator grant select on tables to public")
    for at in ({}, {"at": ordinary}):
        (finding,) = find("privileges", **at)
        assert "PUBLIC gets SELECT" in finding.found


def test_default_privileges__functions_taken_from_public__are_found(find, connection):
    connection.execute("alter default privileges revoke execute on functions from public")
    assert len(find("privileges")) == 1


@pytest.mark.direct("the pooler is a finding")
def test_granted_roles__installation__is_no_drift_and_a_reader_can_ask(app, dsn, ordinary):
    from coordinator.db.schema import grants

    role = psycopg.conninfo.conninfo_to_dict(ordinary)["user"]
    grants(dsn, "coordinator", "reader", role, execute=True)
    assert examine(dsn, "coordinator").findings == ()
    report = examine(ordinary, "coordinator")
    assert report.findings == ()
    assert {skipped.check for skipped in report.skipped} == {"version", "drift", "snapshots", "locked-claims"}
