"""Real roles: each can do its work, and nothing else."""

import shutil
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from coordinator import Coordinator
from coordinator.db import schema
from coordinator.errors import DeniedError

KINDS = ("publisher", "consumer", "reader", "operator")


@pytest.fixture(scope="module")
def roles(server):
    """A role of each kind on the server of the run; with a password, since containers ask for one."""
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        for kind in (*KINDS, "stranger"):
            connection.execute(f"create role \"test {kind}\" login password 'secret'")
        yield
        for kind in (*KINDS, "stranger"):
            connection.execute(f'drop role "test {kind}"')


@pytest.fixture
def as_role(dsn, roles):
    """Give the DSN of a role; all roles are granted what their kind needs."""
    for kind in KINDS:
        schema.grants(dsn, "coordinator", kind, f"test {kind}", execute=True)
    with Coordinator(dsn) as app:
        app.create_topic("orders")
        app.publish("orders", 1)
    yield lambda kind: psycopg.conninfo.make_conninfo(dsn, user=f"test {kind}", password="secret")
    with psycopg.connect(dsn, autocommit=True) as connection:
        for kind in KINDS:
            connection.execute(f'drop owned by "test {kind}"')


def refused(dsn, text):
    with psycopg.connect(dsn, autocommit=True) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(text)


CALLS = {
    "publisher": "select coordinator.publish('orders', '1')",
    "consumer": "select coordinator.retire_segments()",
    "reader": "select * from coordinator.offsets",
    "operator": "select coordinator.pause('g', 'orders')",
}


@pytest.mark.parametrize("kind", ["publisher", "consumer", "reader", "stranger"])
def test_role__what_is_for_others__is_refused(as_role, kind):
    for other, text in CALLS.items():
        if other != kind:
            refused(as_role(kind), text)
    for table in ("topics", "progress", "dead_letters", "topic_1", "topic_1_s1", "claims"):
        refused(as_role(kind), f"select 1 from coordinator.{table}")
    for text in (
        "select coordinator.read_windows(1, array[0], array[0], array[0], array[10])",
        "select coordinator.high_offset(1, 0)"
        if kind != "reader"
        else "select coordinator.fence_claim(1,1,0,0,'{}',0,now())",
        "select coordinator.apply_grants('operator', current_user)",
        "select coordinator.set_topic_rights('orders', null, null)",
        "select nextval('coordinator.topic_1_p0')",
        "create table coordinator.mine ()",
    ):
        refused(as_role(kind), text)


def test_publisher__publishes_in_every_way(as_role):
    with Coordinator(as_role("publisher")) as app:
        assert app.publish("orders", 2).offset == 1
        app.publish_many("orders", [3, 4])
        app.publish("orders", 5, delay_s=60, message_id="6b29fc40-ca47-1067-b31d-00dd010662da")
        with pytest.raises(DeniedError):
            app.create_topic("other")
        with pytest.raises(DeniedError):
            app.peek("orders")
        with pytest.raises(DeniedError, match="may not consume") as denied:
            app.consumer("orders", group="g").start()
        assert "db grants --role consumer" in denied.value.hint


def test_consumer__consumes_retries_and_leaves(as_role, dsn):
    with Coordinator(as_role("consumer")) as app, app.consumer("orders", group="g") as consumer:
        message = next(iter(consumer))
        message.nack(delay_s=0)
        again = next(iter(consumer))
        assert again.attempt == 2
        again.ack(wait=True)
        with pytest.raises(DeniedError):
            app.publish("orders", 1)
    with Coordinator(dsn) as app:
        assert [place.current_offset for place in app.group_offsets("g")] == [1]


def test_operator__sees_and_moves_everything_and_is_no_owner(as_role):
    with Coordinator(as_role("operator")) as app:
        app.create_topic("other", retention_s=None)
        app.alter_topic("orders", retention_s=60)
        app.rotate("orders")
        app.topics()
        app.groups()
        app.maintain(once=True)
        assert app.peek("orders")
        assert app.publish("orders", 2).offset == 1
        with app.consumer("orders", group="g") as consumer:
            next(iter(consumer)).ack(wait=True)
    refused(as_role("operator"), "delete from coordinator.progress")
    refused(as_role("operator"), "select 1 from coordinator.dead_letters")


def test_operator__a_topic_of_other_roles__is_published_to_and_seen(as_role):
    with Coordinator(as_role("operator")) as app:
        app.set_topic_rights("orders", publish=[], subscribe=["test consumer"])
        app.publish("orders", 2)
        assert [message.value for message in app.peek("orders")] == [1, 2]
        with app.consumer("orders", group="g") as consumer:
            next(iter(consumer)).ack(wait=True)
        assert [state.group for state in app.message_states("orders", 0, 0)] == ["g"]
    with psycopg.connect(as_role("publisher"), autocommit=True) as publisher, pytest.raises(psycopg.Error) as denied:
        publisher.execute("select coordinator.publish('orders', '1')")
    assert denied.value.sqlstate == "KG008"


def test_rights_of__kinds__an_operator_has_all_of_them(dsn):
    with psycopg.connect(dsn) as owner:
        rights = {k: set(owner.execute("select coordinator.rights_of(%s)", (k,)).fetchone()[0]) for k in KINDS}
        assert owner.execute("select coordinator.rights_of('nobody')").fetchone()[0] is None
    assert rights["publisher"] | rights["consumer"] | rights["reader"] < rights["operator"]


def test_reader__sees_every_view_but_no_payload(as_role, dsn):
    with psycopg.connect(dsn) as owner:
        views = owner.execute(
            "select c.relname, string_agg(quote_ident(a.attname), ', ') filter (where a.attname not in ('payload', 'headers')), "
            "bool_or(a.attname in ('payload', 'headers')) from pg_class c "
            "join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 "
            "where c.relnamespace = 'coordinator'::regnamespace and c.relkind = 'v' group by 1"
        ).fetchall()
    assert views
    with psycopg.connect(as_role("reader"), autocommit=True) as reader:
        for name, columns, has_payload in views:
            reader.execute(f"select {columns} from coordinator.{name}")
            if has_payload:
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    reader.execute(f"select * from coordinator.{name}")


def test_topic_rights__named_roles__are_the_only_ones(as_role, dsn):
    with psycopg.connect(dsn, autocommit=True) as owner:
        owner.execute("select coordinator.set_topic_rights('orders', array['test operator'], array['test operator'])")
        with Coordinator(as_role("publisher")) as app:
            for delay_s in (None, 60):
                with pytest.raises(DeniedError):
                    app.publish("orders", 1, delay_s=delay_s)
        with Coordinator(as_role("consumer")) as app:
            with pytest.raises(DeniedError), app.consumer("orders", group="g") as consumer:
                next(iter(consumer))
            with pytest.raises(DeniedError):
                app.peek("orders")
        with psycopg.connect(as_role("consumer"), autocommit=True) as connection:
            for text in (
                "select coordinator.gap_pass(array[1], array[0], array['{[0,9)}'])",
                "select coordinator.fetch(array[1], array[1], array[0], array[1::bigint], array['{[0,9)}'])",
                "select coordinator.claim(gen_random_uuid(), array[1], array[1], array[0])",
                "select coordinator.ack(gen_random_uuid(), 1, 1, 0, 1, array[0::bigint], array[0])",
            ):
                with pytest.raises(psycopg.Error) as denied:
                    connection.execute(text)
                assert denied.value.sqlstate == "KG008"
        owner.execute("select coordinator.set_topic_rights('orders', array['test publisher'], array['test consumer'])")
        with Coordinator(as_role("publisher")) as app:
            app.publish("orders", 1)
        with Coordinator(as_role("consumer")) as app, app.consumer("orders", group="g") as consumer:
            next(iter(consumer)).ack(wait=True)
        # The owner may everything.
        owner.execute("select coordinator.publish('orders', '1')")


def test_topic_rights__a_role_that_was_taken_on__counts(as_role, dsn):
    with psycopg.connect(dsn, autocommit=True) as owner:
        owner.execute("select coordinator.set_topic_rights('orders', array['test publisher'], null)")
        # A superuser by its login, who has become somebody without the right.
        owner.execute('set role "test operator"')
        owner.execute("reset role")
        owner.execute('set role "test publisher"')
        owner.execute("select coordinator.publish('orders', '1')")
        owner.execute("reset role")
        owner.execute("select coordinator.set_topic_rights('orders', array['test consumer'], null)")
        owner.execute('set role "test publisher"')
        with pytest.raises(psycopg.Error) as denied:
            owner.execute("select coordinator.publish('orders', '1')")
        assert denied.value.sqlstate == "KG008"


def test_definer__tables_and_operators_of_the_callers__are_not_taken(as_role, dsn):
    """A temporary table, and an operator in a schema of the caller's path, that would be found first if a name were not pinned."""
    with psycopg.connect(as_role("publisher"), autocommit=True) as caller:
        caller.execute("create temporary table topics (like pg_catalog.pg_class)")
        caller.execute("create temporary table segments (x int)")
        caller.execute(
            "create function pg_temp.evil(text, text) returns boolean language plpgsql as "
            "$$ begin raise exception 'taken: %', current_user; end $$"
        )
        caller.execute("create operator pg_temp.= (leftarg = text, rightarg = text, function = pg_temp.evil)")
        caller.execute(
            "create function pg_temp.format(text, variadic text[]) returns text language sql as $$ select 'x' $$"
        )
        caller.execute("set search_path = pg_temp, pg_catalog, coordinator")
        assert caller.execute("select p.\"offset\" from coordinator.publish('orders', '1') p").fetchone()[0] > 0


def test_grants__after_an_upgrade__are_there_again(as_role, dsn):
    schema.downgrade(dsn, "coordinator", "0003")
    schema.upgrade(dsn)
    # What was remembered went with its table; from this revision on an upgrade keeps it.
    schema.grants(dsn, "coordinator", "publisher", "test publisher", execute=True)
    with psycopg.connect(dsn, autocommit=True) as owner:
        owner.execute('revoke all on all functions in schema coordinator from "test publisher"')
        owner.execute("grant execute on all functions in schema coordinator to public")
    schema.upgrade(dsn)
    with Coordinator(as_role("publisher")) as app:
        app.publish("orders", 1)
    refused(as_role("stranger"), "select coordinator.protocol_version()")


NEXT = """
from pathlib import Path
from alembic.util import load_python_file
revision, down_revision, branch_labels, depends_on = "0099", "0004", None, None
run_sql = load_python_file(Path(__file__).parents[1], "run_sql.py")

def upgrade():
    run_sql.run_text('''
        drop function coordinator.peek(text, int, bigint, int);
        create function coordinator.publish_later(text) returns int language sql as $$ select 1 $$;
    ''')
    run_sql.run_file(run_sql.SNAPSHOTS / "0004" / "functions" / "messages" / "peek.sql")
"""
PEEK = "select * from coordinator.peek('orders', 0, 0, 1)"


@pytest.mark.parametrize("way", ["upgrade", "script"])
def test_grants__an_upgrade_makes_functions_anew__roles_work_and_others_are_kept_out(
    as_role, dsn, tmp_path, monkeypatch, way
):
    """An upgrade that drops a function and makes it again, and makes a new one, as later revisions will."""
    shutil.copytree(schema.alembic_dir(), tmp_path / "alembic")
    (tmp_path / "alembic" / "versions" / "0099_next.py").write_text(NEXT)
    monkeypatch.setattr(schema, "alembic_dir", lambda: tmp_path / "alembic")
    if way == "upgrade":
        schema.upgrade(dsn)
    else:
        with psycopg.connect(dsn, autocommit=True) as owner:
            owner.execute(schema.script("coordinator", "0004", "head"))
    assert schema.current(dsn) == "0099"
    with psycopg.connect(as_role("consumer"), autocommit=True) as consumer:
        assert consumer.execute(PEEK).fetchall()
    with Coordinator(as_role("publisher")) as app:
        app.publish("orders", 1)
    for kind in ("stranger", "publisher"):
        refused(as_role(kind), PEEK)
        refused(as_role(kind), "select coordinator.publish_later('x')")


def test_grants__several_at_once__wait_for_each_other(as_role, dsn):
    """Mutant: without a lock of its own, PostgreSQL fails those that come second: tuple concurrently updated."""

    def grant(number):
        kind = KINDS[number % len(KINDS)]
        schema.grants(dsn, "coordinator", kind, f"test {kind}", execute=True)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(grant, range(16)))


def test_upgrade__by_a_role_without_rights__says_what_to_do(empty_dsn, roles):
    stranger = psycopg.conninfo.make_conninfo(empty_dsn, user="test stranger", password="secret")
    with pytest.raises(DeniedError) as denied:
        schema.upgrade(stranger)
    assert "db sql" in denied.value.hint
