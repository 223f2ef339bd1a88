"""Install, upgrade, downgrade, uninstall: on empty databases, from one process and from several."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from coordinator.db import schema
from coordinator.db.drive import drive
from coordinator.errors import ConfigError, SchemaVersionError, UnavailableError

ROOT = Path(__file__).parents[2]
REVISIONS = sorted(path.name.split("_")[0] for path in (ROOT / "alembic" / "versions").glob("[0-9]*_*.py"))
HEAD = REVISIONS[-1]


def run(dsn, *texts):
    with psycopg.connect(dsn, autocommit=True) as connection:
        for text in texts:
            cursor = connection.execute(text)
        return cursor.fetchall() if cursor.description else None


def test_upgrade__empty_database__equals_install_from_sql(empty_database, read_catalog):
    migrated, from_files = empty_database(), empty_database()
    schema.upgrade(migrated)
    schema.install_from_sql(from_files)
    catalog = read_catalog(migrated)
    assert catalog == read_catalog(from_files)
    assert catalog["relations"]
    assert catalog["routines"]


@pytest.mark.parametrize(
    "change",
    [
        "grant execute on function coordinator.protocol_version() to pg_monitor",
        "grant select on coordinator.topics to pg_monitor",
        "alter table coordinator.topics alter name set default 'x'",
        "alter table coordinator.topics set (fillfactor = 77)",
        "create index on coordinator.topics (name, topic_id)",
        "alter function coordinator.protocol_version() volatile",
        "create or replace function coordinator.protocol_version() returns int language sql as 'select 1'",
        "alter default privileges in schema coordinator grant select on tables to pg_monitor",
        "create type coordinator.colour as enum ('red')",
        "create view coordinator.one as select 1 as one",
    ],
)
def test_catalog__one_thing_changed__differs(empty_database, read_catalog, change):
    """The comparison of the other tests is worth something only if it sees this."""
    dsn = empty_database()
    schema.install(dsn)
    before = read_catalog(dsn)
    run(dsn, change)
    assert read_catalog(dsn) != before


def test_upgrade__twice__changes_nothing(empty_database, read_catalog):
    dsn = empty_database()
    schema.upgrade(dsn)
    before = read_catalog(dsn)
    schema.upgrade(dsn)
    assert read_catalog(dsn) == before


def test_upgrade__down_and_up_again__is_as_at_first(empty_database, read_catalog):
    dsn = empty_database()
    schema.upgrade(dsn)
    before = read_catalog(dsn)
    schema.downgrade(dsn, "coordinator", "base")
    schema.upgrade(dsn)
    assert read_catalog(dsn) == before
    assert schema.current(dsn) == HEAD


def test_downgrade__topic_tables_and_own_types_exist__leaves_nothing(empty_database, read_catalog):
    dsn = empty_database()
    schema.upgrade(dsn)
    run(
        dsn,
        "create type coordinator.colour as enum ('red')",
        "create domain coordinator.small as int check (value < 10)",
        "create table coordinator.m (segment int, n coordinator.small, c coordinator.colour) partition by list (segment)",
        "create table coordinator.m_s1 partition of coordinator.m for values in (1)",
        "create sequence coordinator.m_p0",
        "create materialized view coordinator.n as select count(*) as n from coordinator.m",
    )
    schema.downgrade(dsn, "coordinator", "base")
    catalog = read_catalog(dsn)
    assert {kind: rows for kind, rows in catalog.items() if rows and kind != "schema"} == {}
    assert schema.current(dsn) is None


def test_upgrade__other_schema_name__differs_in_the_name_only(empty_database, read_catalog):
    dsn = empty_database()
    schema.upgrade(dsn)
    schema.upgrade(dsn, "orders_log")
    ours, theirs = read_catalog(dsn), read_catalog(dsn, "orders_log")
    assert {kind for kind in ours if ours[kind] != theirs[kind]} == set()
    run(dsn, "drop schema coordinator cascade")
    assert read_catalog(dsn, "orders_log") == theirs, "nothing in orders_log depended on the other one"


def test_upgrade__reserved_word_as_schema_name__works(empty_database):
    dsn = empty_database()
    schema.upgrade(dsn, "order")
    assert run(dsn, 'select "order".protocol_version()') == [(schema.MAX_PROTOCOL,)]


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_upgrade__six_processes_at_once__all_succeed(empty_database, read_catalog, isolation):
    dsn = empty_database(default_transaction_isolation=isolation, default_transaction_read_only="on")
    program = "import sys; from coordinator.db.schema import install; install(sys.argv[1])"
    processes = [
        subprocess.Popen([sys.executable, "-c", program, dsn], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    outcomes = [(process.communicate(timeout=60)[1], process.returncode) for process in processes]
    assert outcomes == [("", 0)] * 6
    alone = empty_database()
    schema.upgrade(alone)
    assert read_catalog(dsn) == read_catalog(alone)


def test_upgrade__another_migration_holds_the_lock__waits_then_sees_its_result(empty_database):
    dsn = empty_database()
    waiting = "select 1 from pg_locks l where l.locktype = 'advisory' and not l.granted"
    program = "import sys; from coordinator.db.schema import install; install(sys.argv[1])"
    with psycopg.connect(dsn) as first:
        schema.begin_migration(first, "coordinator")
        second = subprocess.Popen([sys.executable, "-c", program, dsn], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        limit = time.monotonic() + 30
        while not run(dsn, waiting):
            assert second.poll() is None, second.communicate()
            assert time.monotonic() < limit, "the second process does not wait for the lock"
        # What the first one commits is a foreign table: the second must see it, though it began before.
        first.execute("create table coordinator.notes (n int)")
    _, stderr = second.communicate(timeout=60)
    assert "exists and is not empty" in stderr


def test_upgrade__schema_of_others__is_refused_and_untouched(empty_database):
    dsn = empty_database()
    run(dsn, "create schema app", "create table app.users (id int)")
    with pytest.raises(ConfigError):
        schema.upgrade(dsn, "app")
    with pytest.raises(ConfigError):
        schema.install_from_sql(dsn, "app")
    with pytest.raises(ConfigError):
        schema.uninstall(dsn, "app")
    assert run(dsn, "select count(*) from app.users") == [(0,)]


def test_upgrade__schema_made_by_an_administrator__needs_no_right_to_create_schemas(empty_database, server):
    dsn = empty_database()
    role = f"owner_{conninfo_to_dict(dsn)['dbname']}"
    run(dsn, f"create role {role}", f"create schema coordinator authorization {role}")
    try:
        schema.upgrade(psycopg.conninfo.make_conninfo(dsn, options=f"-c role={role}"))
        assert run(dsn, "select coordinator.protocol_version()") == [(schema.MAX_PROTOCOL,)]
    finally:
        run(dsn, f"drop owned by {role} cascade", f"drop role {role}")


def test_upgrade__services_own_history_has_a_0001_too__is_not_taken_for_ours(empty_database):
    dsn = empty_database()
    run(
        dsn,
        "create schema coordinator",
        "create table coordinator.alembic_version (version_num text)",
        "insert into coordinator.alembic_version values ('0001')",
    )
    with pytest.raises(ConfigError):
        schema.upgrade(dsn)


def test_upgrade__schema_is_newer_than_the_client__says_upgrade_the_client(empty_database):
    dsn = empty_database()
    schema.upgrade(dsn)
    run(dsn, f"update coordinator.{schema.VERSION_TABLE} set version_num = '9999'")
    with pytest.raises(SchemaVersionError, match="upgrade the client"):
        schema.upgrade(dsn)


def test_upgrade__fails_half_way__leaves_nothing(empty_database, read_catalog, monkeypatch, tmp_path):
    dsn = empty_database()
    copy = _copy_of_alembic(tmp_path, monkeypatch)
    _write(copy / "snapshots/0001/views/zz.sql", "select 1 / 0;")
    with pytest.raises(psycopg.errors.DivisionByZero):
        schema.upgrade(dsn)
    assert run(dsn, "select to_regnamespace('coordinator') is null") == [(True,)]


@pytest.mark.parametrize("revision", REVISIONS[:-1])
def test_downgrade__to_an_older_revision__equals_an_upgrade_to_it(empty_database, read_catalog, revision):
    back, there = empty_database(), empty_database()
    schema.upgrade(back)
    schema.downgrade(back, "coordinator", revision)
    schema.upgrade(there, revision=revision)
    assert read_catalog(back) == read_catalog(there)


def test_downgrade__next_revision__brings_the_older_copies_back(empty_database, read_catalog, monkeypatch, tmp_path):
    """The way back that each revision relies on."""
    dsn = empty_database()
    copy = _copy_of_alembic(tmp_path, monkeypatch)
    function = "create or replace function coordinator.{}() returns int language sql as 'select {}';".format
    _write(copy / "snapshots/0001/functions/zz/changed.sql", function("changed", 1))
    _write(copy / "snapshots/0001/functions/zz/gone.sql", function("gone", 1))
    schema.upgrade(dsn)
    before = read_catalog(dsn)

    template = (copy / "script.py.mako").read_text()
    revision = (
        template.replace("${message}", "Next")
        .replace("${repr(up_revision)}", "'9999'")
        .replace("${repr(down_revision)}", repr(HEAD))
        .replace("    # Table changes", '    run_sql.run_text("drop function coordinator.gone()")\n    # Table changes')
        .replace("    # Drop what", '    run_sql.run_text("drop function coordinator.added()")\n    # Drop what')
    )
    _write(copy / "versions/9999_next.py", revision)
    _write(copy / "snapshots/9999/functions/zz/changed.sql", function("changed", 2))
    _write(copy / "snapshots/9999/functions/zz/added.sql", function("added", 2))
    _write(copy / "snapshots/9999/deleted.txt", "functions/zz/gone.sql\n")
    schema.upgrade(dsn)
    assert schema.current(dsn) == "9999"
    assert run(dsn, "select coordinator.changed(), coordinator.added(), to_regproc('coordinator.gone') is null") == [
        (2, 2, True)
    ]

    schema.downgrade(dsn, "coordinator", HEAD)
    assert read_catalog(dsn) == before


def test_downgrade__nothing_installed__says_so(empty_database):
    with pytest.raises(SchemaVersionError):
        schema.downgrade(empty_database(), "coordinator", "base")


def test_uninstall__installed__leaves_no_schema(empty_database):
    dsn = empty_database()
    schema.install(dsn)
    schema.uninstall(dsn)
    schema.uninstall(dsn)
    assert run(dsn, "select to_regnamespace('coordinator') is null") == [(True,)]


def test_install__forms_of_dsn__are_all_understood(empty_database):
    dsn = empty_database()
    parts = conninfo_to_dict(dsn)
    url = "{scheme}://?" + "&".join(f"{name}={value}" for name, value in parts.items())
    for schema_name, form in [
        ("a", dsn),
        ("b", url.format(scheme="postgresql")),
        ("c", url.format(scheme="postgresql+psycopg")),
        ("d", url.format(scheme="postgres")),
    ]:
        schema.install(form, schema_name)
        assert schema.current(form, schema_name) == HEAD


def test_install__no_server__raises_unavailable(tmp_path):
    with pytest.raises(UnavailableError):
        schema.install(f"host={tmp_path}")


def test_protocol_checked__installed__returns_the_version(empty_database):
    dsn = empty_database()
    schema.install(dsn, "orders_log")
    with psycopg.connect(dsn) as connection:
        assert drive(schema.protocol_checked("orders_log"), connection, "orders_log") == schema.MAX_PROTOCOL


def test_protocol_checked__not_installed__names_the_command_and_spares_the_transaction(empty_database):
    dsn = empty_database()
    with psycopg.connect(dsn) as connection:
        with pytest.raises(
            SchemaVersionError, match=r"is not installed in database 'migration_.*coordinator db upgrade"
        ):
            drive(schema.protocol_checked("coordinator"), connection, "coordinator")
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS


def test_alembic_command__in_a_checkout__upgrades_and_downgrades(empty_database, monkeypatch):
    dsn = empty_database()
    program = [sys.executable, "-m", "alembic", "-x", f"dsn={dsn}", "-x", "schema=orders_log"]
    subprocess.run([*program, "upgrade", "head"], cwd=ROOT, check=True, capture_output=True)
    assert schema.current(dsn, "orders_log") == HEAD
    monkeypatch.setenv("COORDINATOR_DSN", dsn)
    monkeypatch.setenv("COORDINATOR_SCHEMA", "orders_log")
    subprocess.run([*program[:3], "downgrade", "base"], cwd=ROOT, check=True, capture_output=True)
    assert schema.current(dsn, "orders_log") is None


def test_alembic_command__offline__writes_a_script_that_installs(empty_database, read_catalog):
    program = [sys.executable, "-m", "alembic", "upgrade", "head", "--sql"]
    script = subprocess.run(program, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    by_script, online = empty_database(), empty_database()
    run(by_script, script)
    schema.upgrade(online)
    assert read_catalog(by_script) == read_catalog(online)
    assert schema.current(by_script) == HEAD


def test_snapshots__of_this_tree__equal_the_sql_files():
    program = [sys.executable, "scripts/snapshot_functions.py", "--check"]
    check = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    assert check.returncode == 0, f"run scripts/snapshot_functions.py\n{check.stdout}"


def _copy_of_alembic(tmp_path, monkeypatch):
    copy = tmp_path / "alembic"
    shutil.copytree(ROOT / "alembic", copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(schema, "alembic_dir", lambda: copy)
    return copy


def _write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
