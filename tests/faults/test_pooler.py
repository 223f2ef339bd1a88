"""A pooler in transaction mode between us and the server: nothing of ours may need a session (case 18)."""

import asyncio
import time
from contextlib import ExitStack

import psycopg
import pytest
from support.pgbouncer import PgBouncer, find_pgbouncer
from support.shell import GROUP, TOPIC, Reading, committed, drain, publish, query, short, wait_until

from coordinator import AsyncCoordinator, Coordinator, Settings
from coordinator.cli.bench import bare
from coordinator.cli.demo import tables
from coordinator.db.schema import current, install, uninstall
from coordinator.errors import ConfigError

pytestmark = [
    pytest.mark.skipif(find_pgbouncer() is None, reason="no pgbouncer here (Debian: apt-get install pgbouncer)"),
    pytest.mark.direct("brings a pooler of its own"),
]


@pytest.fixture(scope="module")
def pooling(server):
    with PgBouncer(server.dsn) as made:
        yield made


@pytest.fixture
def pooled_dsn(pooling, dsn):
    return pooling.through(dsn)


def test_pooler__in_transaction_mode__publishes_consumes_and_says_that_it_only_polls(pooled_dsn, dsn, caplog):
    with Coordinator(pooled_dsn, client_id="test", settings=short()) as app:
        app.create_topic(TOPIC, 4)
        consumers = [app.consumer(TOPIC, group=GROUP).start() for _ in range(3)]
        readings = [Reading(consumer, wait=True) for consumer in consumers]
        published = []
        for round_ in range(20):
            published += publish(app, 20, start=round_ * 20)
        got = lambda: sorted(value for reading in readings for value in reading.values)  # noqa: E731
        wait_until(lambda: len(got()) >= len(published), 30)
        assert all(consumer._runtime.settings.pooled for consumer in consumers)
        listening = query(dsn, "select count(*) from pg_stat_activity where query ilike 'listen%%'")
        for reading in readings:
            reading.stop()
            assert reading.errors == []
    assert got() == published
    assert sum(committed(dsn).values()) == len(published)
    assert listening == [(0,)]
    assert "pooler.found" in [record.msg for record in caplog.records]
    assert [r.error for r in caplog.records if r.msg in ("exchange.failed", "connection.lost")] == []


@pytest.mark.parametrize("prepare", [None, False])
def test_pooler__on_asyncio__nothing_fails(pooled_dsn, dsn, caplog, prepare):
    async def run():
        async with AsyncCoordinator(pooled_dsn, client_id="test", settings=short(prepare=prepare)) as app:
            await app.create_topic(TOPIC, 2)
            for number in range(100):
                await app.publish(TOPIC, number, key=str(number))
            async with app.consumer(TOPIC, group=GROUP) as consumer:
                found = []
                deadline_s = time.monotonic() + 20
                while len(found) < 100 and time.monotonic() < deadline_s:
                    for message in await consumer.poll(50, 0.5):
                        found.append(message.value)
                        await message.ack(wait=True)
            return found

    assert sorted(asyncio.run(run())) == list(range(100))
    assert [r.error for r in caplog.records if r.msg in ("exchange.failed", "connection.lost")] == []


def test_pooler__transactional_handlers__ack_and_effect_are_one(pooled_dsn, dsn):
    query(dsn, "create table effects (value int)")
    with Coordinator(pooled_dsn, client_id="test", settings=short()) as app:
        app.create_topic(TOPIC, 2)
        publish(app, 50)
        with app.consumer(TOPIC, group=GROUP) as consumer:
            done = 0
            deadline_s = time.monotonic() + 20
            while done < 50 and time.monotonic() < deadline_s:
                for message in consumer.poll(10, 0.5):
                    with message.transaction() as connection:
                        connection.execute("insert into effects values (%s)", (message.value,))
                    done += 1
    assert query(dsn, "select count(*), count(distinct value) from effects") == [(50, 50)]


def test_pooler__statements_prepared_all_the_same__fails_where_the_pooler_keeps_none(pooled_dsn):
    """What `prepare` is off for: this version of the pooler does not carry prepared statements over."""
    if int(_version().split(".")[1]) >= 21:
        pytest.skip("this PgBouncer carries prepared statements over")
    session = "select pg_backend_pid()"
    with psycopg.connect(pooled_dsn, autocommit=True, prepare_threshold=0) as one, ExitStack() as others:
        with one.transaction():
            one.execute("select 1 + %s", (1,))
            prepared = one.execute(session, prepare=False).fetchall()
        # The session that has it goes to somebody else; no other one has ever seen the statement.
        held = None
        while held != prepared:
            other = others.enter_context(psycopg.connect(pooled_dsn))
            held = other.execute(session).fetchall()
        with pytest.raises(psycopg.errors.InvalidSqlStatementName):
            one.execute("select 1 + %s", (1,))


def test_pooler__said_to_keep_sessions__listen_that_cannot_work_is_found(server, dsn, caplog):
    with (
        PgBouncer(server.dsn, resets=True) as pooling,
        Coordinator(pooling.through(dsn), client_id="test", settings=short(pooler="session", prepare=False)) as app,
    ):
        app.create_topic(TOPIC, 1)
        with app.consumer(TOPIC, group=GROUP) as consumer:
            wait_until(lambda: consumer.status().wake_ups == "deaf", 40)
            publish(app, 3, partition=0)
            assert len(drain(consumer, 3)) == 3
    assert "listener.deaf" in [record.msg for record in caplog.records]


def test_direct_connection__is_taken_for_no_pooler(dsn, caplog):
    with Coordinator(dsn, client_id="test", settings=short()) as app:
        app.create_topic(TOPIC, 1)
        with app.consumer(TOPIC, group=GROUP) as consumer:
            assert not consumer._runtime.settings.pooled
            wait_until(lambda: consumer.status().wake_ups == "listen", 20)
    assert "pooler.found" not in [record.msg for record in caplog.records]


def test_session_mode__said_so__listens(server, dsn):
    with (
        PgBouncer(server.dsn, mode="session") as pooler,
        Coordinator(pooler.through(dsn), client_id="test", settings=short(pooler="session")) as app,
    ):
        app.create_topic(TOPIC, 1)
        with app.consumer(TOPIC, group=GROUP) as consumer:
            wait_until(lambda: consumer.status().wake_ups == "listen", 30)
            publish(app, 50, partition=0)
            assert len(drain(consumer, 50)) == 50


def test_schema__installed_and_removed_through_the_pooler(pooling, empty_dsn):
    install(pooling.through(empty_dsn))
    assert current(pooling.through(empty_dsn)) == current(empty_dsn) is not None
    uninstall(pooling.through(empty_dsn))
    assert current(empty_dsn) is None


def test_maintain__through_the_pooler__moves_what_is_due(pooled_dsn):
    with Coordinator(pooled_dsn, client_id="test", settings=short()) as app:
        app.create_topic(TOPIC, 1)
        for number in range(30):
            app.publish(TOPIC, number, delay_s=0.01)
        wait_until(lambda: app.maintain(once=True) and app.peek(TOPIC, limit=50)[29:], 20)


def test_pooler_setting__unknown_word__is_refused(monkeypatch):
    with pytest.raises(ConfigError):
        Settings(pooler="statement")
    monkeypatch.setenv("COORDINATOR_POOLER", "transaction")
    assert Settings().pooled
    assert Settings().prepares is False
    monkeypatch.setenv("COORDINATOR_POOLER", "odd")
    with pytest.raises(ConfigError):
        Settings()


def _version() -> str:
    import subprocess

    said = subprocess.run([str(find_pgbouncer()), "--version"], capture_output=True, text=True, check=True).stdout
    return said.split()[1]


def test_bench__its_bare_side__prepares_statements_only_where_ours_do(pooled_dsn, direct_dsn):
    with bare.connect(direct_dsn) as direct, bare.connect(pooled_dsn) as pooled:
        assert (direct.prepare_threshold, pooled.prepare_threshold) == (5, None)


def test_demo__run_behind_a_pooler__excludes_others_and_is_over_when_it_is_over(pooled_dsn, direct_dsn):
    for other in (pooled_dsn, direct_dsn):
        with (
            tables.sole_run(pooled_dsn),
            pytest.raises(ConfigError, match="another `coordinator demo` runs"),
            tables.sole_run(other),
        ):
            pass
