"""A dump restored elsewhere: consumers go on where they were; sequences that did not come along are found and set."""

import subprocess
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner

from coordinator import Coordinator
from coordinator.cli.main import cli as main
from coordinator.db import schema
from coordinator.embedded.binaries import find_binaries
from coordinator.errors import ConfigError
from coordinator.testing.databases import Databases
from coordinator.testing.server import start_server

# What a dump says of its session at the beginning has to hold to its end.
pytestmark = pytest.mark.direct("a dump is restored in one session")


@pytest.fixture
def app(dsn):
    with Coordinator(dsn) as made:
        made.create_topic("orders", partitions=2)
        for value in range(6):
            made.publish("orders", value, partition=value % 2)
        made.rotate("orders")
        made.publish("orders", 6, partition=0)
        with made.consumer("orders", group="g") as consumer:
            for got, message in enumerate(consumer, 1):
                message.ack(wait=True)
                if got == 3:
                    break
        yield made


def tool(name, dsn):
    """The program of the server's own major: a newer pg_dump writes settings that this server does not know."""
    with psycopg.connect(dsn) as connection:
        major = connection.info.server_version // 10000
    try:
        found = Path(find_binaries(major)) / name
    except ConfigError as error:
        pytest.skip(str(error))
    if not found.exists():
        pytest.skip(f"the binaries of this server come without {name}")
    return str(found)


def restored(source, target, *options):
    dump = subprocess.run([tool("pg_dump", source), *options, source], capture_output=True, check=True, text=True)
    subprocess.run(
        [tool("psql", target), "-v", "ON_ERROR_STOP=1", "-q", "-d", target], input=dump.stdout, check=True, text=True
    )


def read_on(dsn):
    """What group g still gets, and the offset of a new message."""
    with Coordinator(dsn) as app:
        new = app.publish("orders", "new", partition=0).offset
        with app.consumer("orders", group="g") as consumer:
            got = []
            for message in consumer:
                got.append((message.partition, message.offset))
                message.ack(wait=True)
                if (0, new) in got and len(got) >= 5:
                    return new, got
    raise AssertionError(got)


def settled(dsn):
    with Coordinator(dsn) as app:
        return {(place.partition, place.current_offset) for place in app.group_offsets("g")}


def test_dump__restored_elsewhere__consumers_go_on_at_their_offsets(app, dsn, empty_dsn):
    before = settled(dsn)
    restored(dsn, empty_dsn)
    assert settled(empty_dsn) == before
    assert schema.repair_sequences(empty_dsn, "coordinator", execute=False) == []
    new, got = read_on(empty_dsn)
    assert new == 4
    assert len(got) == len(set(got)) == 5


def test_dump__restored_on_another_server__consumers_go_on_and_doctor_is_green(app, direct_dsn):
    with psycopg.connect(direct_dsn) as connection:
        major, folder = connection.info.server_version // 10000, connection.execute("show data_directory").fetchone()
    before = settled(direct_dsn)
    with start_server(major=major) as other, Databases(other.dsn) as databases:
        target = databases.create_empty()
        with psycopg.connect(target) as connection:
            assert connection.execute("show data_directory").fetchone() != folder
        restored(direct_dsn, target)
        assert settled(target) == before
        new, got = read_on(target)
        assert new == 4
        assert len(got) == len(set(got)) == 5
        found = CliRunner().invoke(main, ["doctor", "--dsn", target])
        assert found.exit_code == 0, found.output


def test_dump__without_sequences__is_found_and_mended(app, dsn, empty_dsn):
    restored(dsn, empty_dsn)
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        for (name,) in connection.execute(
            "select c.oid::regclass::text from pg_class c where c.relkind = 'S' and c.relnamespace = 'coordinator'::regnamespace"
        ).fetchall():
            connection.execute(f"alter sequence {name} restart")
    run = CliRunner().invoke
    asked = run(main, ["db", "repair-sequences", "--dsn", empty_dsn])
    assert asked.exit_code == 1
    assert "coordinator.topic_1_p0" in asked.stdout
    assert run(main, ["db", "repair-sequences", "--dsn", empty_dsn, "--execute"]).exit_code == 0
    assert run(main, ["db", "repair-sequences", "--dsn", empty_dsn]).exit_code == 0
    new, got = read_on(empty_dsn)
    assert new == 4
    assert len(got) == len(set(got)) == 5
    with Coordinator(empty_dsn) as copy:
        assert copy.topic("orders").segment == 2
        copy.create_topic("other")


def test_dump__a_rotation_while_it_ran__is_mended(app, dsn, empty_dsn):
    restored(dsn, empty_dsn)
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        # The sequence was read later than the tables: it names a segment that the dump has not got.
        connection.execute("select setval('coordinator.topic_1_segment', 3)")
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("select coordinator.publish('orders', '1')")
    (found,) = schema.repair_sequences(empty_dsn, "coordinator", execute=True)
    assert found == ("coordinator.topic_1_segment", 3, 2)
    assert read_on(empty_dsn)[0] >= 4


def test_sql__run_by_somebody_else__is_an_installation(empty_dsn):
    script = CliRunner().invoke(main, ["db", "sql"])
    assert script.exit_code == 0
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        connection.execute(script.stdout)
    assert schema.current(empty_dsn) is not None
    schema.upgrade(empty_dsn)
    with Coordinator(empty_dsn) as app:
        app.create_topic("orders")
        assert app.publish("orders", 1).offset == 0
    assert CliRunner().invoke(main, ["db", "sql", "--from", "0042"]).exit_code != 0


def test_sql__another_schema_and_from_a_revision__upgrades(empty_dsn):
    schema.upgrade(empty_dsn, "shop_log", "0003")
    script = CliRunner().invoke(main, ["db", "sql", "--schema", "shop_log", "--from", "0003"])
    assert "create table" in script.stdout
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        connection.execute(script.stdout)
    with Coordinator(empty_dsn, schema="shop_log") as app:
        app.create_topic("orders")


def test_uninstall__asked_for__leaves_nothing(app, dsn):
    run = CliRunner().invoke
    assert run(main, ["db", "uninstall", "--dsn", dsn]).exit_code == 2
    assert run(main, ["db", "uninstall", "--dsn", dsn, "--yes"]).exit_code == 0
    with psycopg.connect(dsn) as connection:
        assert connection.execute("select to_regnamespace('coordinator')").fetchone() == (None,)


def test_grants__printed_and_executed__on_the_command_line(app, dsn):
    run = CliRunner().invoke
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute('drop role if exists "test restore"')
        connection.execute('create role "test restore"')
        try:
            printed = run(main, ["db", "grants", "--role", "reader", "--to", "test restore", "--dsn", dsn])
            assert printed.exit_code == 0
            assert 'grant usage on schema coordinator to "test restore";' in printed.stdout.splitlines()
            done = run(
                main,
                ["db", "grants", "--role", "publisher", "--to", "test restore", "--execute", "--json", "--dsn", dsn],
            )
            assert '"executed": true' in done.stdout
            assert run(main, ["db", "grants", "--role", "reader", "--to", "nobody", "--dsn", dsn]).exit_code == 2
        finally:
            connection.execute('drop owned by "test restore"')
            connection.execute('drop role "test restore"')
