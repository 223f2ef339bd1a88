"""Databases and roles whose defaults are odd, and clocks that are wrong: nothing of ours depends on either (cases 19, 28)."""

import asyncio
import subprocess
import time

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from support.aio import coordinator, in_loop
from support.processes import Process, Task
from support.shell import GROUP, TOPIC, committed, drain, epochs, publish, query, short, wait_until

from coordinator import Coordinator, Outgoing
from coordinator.db.schema import downgrade, install
from coordinator.errors import UnavailableError

DEFAULTS = {
    "default_transaction_read_only": "on",
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "statement_timeout": "40ms",
    "lock_timeout": "1ms",
    "idle_in_transaction_session_timeout": "1ms",
    "DateStyle": "SQL, DMY",
    "IntervalStyle": "sql_standard",
    "TimeZone": "Pacific/Chatham",
    "bytea_output": "escape",
    "search_path": "nowhere",
    "quote_all_identifiers": "on",
    "extra_float_digits": "0",
    "client_min_messages": "debug1",
    "row_security": "off",
    "synchronize_seqscans": "off",
    "default_table_access_method": "heap",
    "transform_null_equals": "on",
    "standard_conforming_strings": "off",
    "backslash_quote": "off",
    "array_nulls": "off",
    "lo_compat_privileges": "on",
    "plpgsql.variable_conflict": "use_column",
}


def set_default(dsn, name, value):
    """Of the database, in a session that is its own and whose defaults are still the old ones."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("set default_transaction_read_only = off")
        text = "alter database {} set {} to {}"
        known = sql.Identifier(conninfo_to_dict(dsn)["dbname"])
        connection.execute(sql.SQL(text).format(known, sql.SQL(name), sql.SQL("{}").format(sql.Literal(value))))


@pytest.fixture(params=["none", "transaction"], ids=["sessions set up", "each transaction says it all"])
def pooler_word(request):
    """How publishing and administration deal with defaults: by sessions of ours, or in each transaction."""
    return request.param


@pytest.mark.parametrize("name", DEFAULTS)
def test_default_of_the_database__odd__breaks_nothing_of_ours(direct_dsn, pooler_word, name):
    """Case 19, and its kind: whatever a database says for everybody is not said for us."""
    set_default(direct_dsn, name, DEFAULTS[name])
    with Coordinator(direct_dsn, client_id="test", settings=short(pooler=pooler_word)) as app:
        # Longer than any limit among the defaults.
        assert app.create_topic("wide", 64)
        app.create_topic(TOPIC, 2, dedup_window_s=60)
        published = publish(app, 300)
        app.publish(TOPIC, 1000, dedup_key="k", delay_s=0.01)
        app.publish(TOPIC, 1001, key="\\'\"null", headers={"a": None})
        with app.consumer(TOPIC, group=GROUP) as consumer:
            found = drain(consumer, 302, 40)
            consumer.commit()
        assert sorted(message.value for message in found) == [*published, 1000, 1001]
        assert [message.headers.get("a") for message in found if message.value == 1001] == [None]
        assert app.topics()
        assert app.groups()[0].lag == 0
        assert app.group_offsets(GROUP)[0].progress_at.tzinfo is not None


@pytest.mark.parametrize("name", ["default_transaction_read_only", "statement_timeout", "lock_timeout"])
@in_loop
async def test_default_of_the_database__odd__asyncio_publishes_and_consumes(direct_dsn, pooler_word, name):
    await asyncio.to_thread(set_default, direct_dsn, name, DEFAULTS[name])
    async with coordinator(direct_dsn, pooler=pooler_word) as app:
        await app.create_topic(TOPIC, 16)
        await app.publish_many(TOPIC, [Outgoing(number, str(number)) for number in range(200)])
        async with app.consumer(TOPIC, group=GROUP) as consumer:
            seen = set()
            deadline_s = time.monotonic() + 30
            while len(seen) < 200 and time.monotonic() < deadline_s:
                for message in await consumer.poll(100, 1):
                    seen.add(message.value)
                    message.ack()
            await consumer.commit()
    assert seen == set(range(200))


@pytest.mark.parametrize(
    "name", ["default_transaction_read_only", "default_transaction_isolation", "statement_timeout"]
)
def test_default_of_the_database__odd__schema_is_installed_and_taken_back(empty_dsn, name):
    set_default(empty_dsn, name, DEFAULTS[name])
    install(empty_dsn)
    downgrade(empty_dsn, "coordinator", "0002")
    install(empty_dsn)


def test_limits_that_the_dsn_says_itself__are_kept(direct_dsn):
    dsn = f"{direct_dsn}&options=-c%20statement_timeout%3D100"
    with (
        Coordinator(dsn, settings=short()) as app,
        app._pool.connection() as connection,
        pytest.raises(psycopg.errors.QueryCanceled),
    ):
        connection.execute("select pg_sleep(5)")


def test_publish__server_frozen_behind_its_socket__ends_in_bounded_time(direct_dsn):
    """A statement of ours that waits for a lock for ever: a limit of ours ends it, and the session is in order."""
    with Coordinator(f"{direct_dsn}&options=-c%20lock_timeout%3D200", settings=short()) as app:
        app.create_topic(TOPIC, 1)
        with psycopg.connect(direct_dsn) as other:
            other.execute("lock table coordinator.topic_1_s1 in access exclusive mode")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                app.publish(TOPIC, 1)
        assert app.publish(TOPIC, 2).partition == 0


# ---- clocks

FAKED = """
import os, sys, time
skew_s, step = float(sys.argv.pop(1)), sys.argv.pop(1)
real = time.time
def shifted():
    # Stepped by twice as much, when told.
    return real() + (-skew_s if os.path.exists(step) else skew_s)
time.time, time.time_ns = shifted, lambda: int(shifted() * 1e9)
sys.argv.pop(0)
import runpy
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("skew_s", [600.0, -600.0])
def test_client_clock__ten_minutes_off_and_stepped__leases_and_retries_unaffected(dsn, tmp_path, monkeypatch, skew_s):
    """Case 28. The process's wall clock is wrong and jumps; its monotonic clock and the server's are all that counts."""
    popen, step = subprocess.Popen, tmp_path / "step"

    def faked(command, **options):
        if len(command) > 2 and command[1].endswith("processes.py"):
            command = [command[0], "-c", FAKED, str(skew_s), str(step), *command[1:]]
            options["env"] = {**options["env"], "TZ": "Asia/Kathmandu" if skew_s > 0 else "America/St_Johns"}
        return popen(command, **options)

    with Coordinator(dsn, client_id="test", settings=short()) as app:
        app.create_topic(TOPIC, 2)
        monkeypatch.setattr("support.processes.subprocess.Popen", faked)
        settings = {"lease_s": 3.0, "heartbeat_s": 0.5, "self_fence_margin_s": 0.3, "membership_poll_s": 0.3}
        task = Task(dsn, TOPIC, GROUP, "skewed", "subscribe", settings=settings, options={"retry": [0.5]}, raise_on=[7])
        with Process(task, tmp_path) as process:
            wait_until(lambda: process.events("ready"), 30)
            wait_until(lambda: set(epochs(dsn).values()) == {1}, 30)
            before = epochs(dsn)
            total = 0
            for stepped in (False, True):
                if stepped:
                    step.touch()
                until_s = time.monotonic() + 4
                while time.monotonic() < until_s:
                    publish(app, 10, start=total)
                    total += 10
                    time.sleep(0.2)
                wait_until(lambda total=total: len({event["value"] for event in process.events("start")}) == total, 30)
            failed = [event["at"] for event in process.events("failed")]
            wait_until(lambda: len(process.events("failed")) >= 3, 30)
            assert process.running
            assert epochs(dsn) == before, "nobody was fenced"
            ats = [event["at"] for event in process.events("start")]
            assert max(ats) - min(ats) > 1000, "the clock was stepped, or nothing was tried"
            assert failed
        lives = query(dsn, "select lease_until - clock_timestamp() < interval '4 s' from coordinator.coordinators")
        assert all(short_enough for (short_enough,) in lives)


def test_clock__of_the_machine_is_off__is_measured_and_shown(dsn, monkeypatch):
    real = time.time
    with Coordinator(dsn, client_id="test", settings=short()) as app:
        app.create_topic(TOPIC, 1)
        monkeypatch.setattr(time, "time", lambda: real() - 600)
        with app.consumer(TOPIC, group=GROUP) as consumer:
            skew_s = wait_until(lambda: consumer.status().clock_skew_s, 30)
            assert 598 < skew_s < 602
            publish(app, 3)
            assert len(drain(consumer, 3, 30)) == 3
            assert consumer.status().healthy


@pytest.mark.parametrize("zone", ["Pacific/Chatham", "UTC+37:15"])
def test_time_zone__of_server_and_client_odd__times_are_the_same_instants(direct_dsn, monkeypatch, zone):
    set_default(direct_dsn, "TimeZone", "America/Caracas")
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        with Coordinator(direct_dsn, client_id="test", settings=short()) as app:
            app.create_topic(TOPIC, 1)
            due = app.publish(TOPIC, 0, delay_s=0.2).due_at
            app.publish(TOPIC, 1)
            (now,) = query(direct_dsn, "select extract(epoch from clock_timestamp())::float8")[0]
            assert abs(due.timestamp() - now) < 30
            with app.consumer(TOPIC, group=GROUP) as consumer:
                found = drain(consumer, 2, 30)
                assert all(abs(message.published_at.timestamp() - now) < 60 for message in found)
                consumer.commit()
        assert sum(committed(direct_dsn).values()) == 2
    finally:
        monkeypatch.undo()
        time.tzset()


def test_server__refuses_writes_for_a_session_of_the_pool__session_is_given_up(direct_dsn):
    """What a standby answers under the old name: only another connection helps."""
    with Coordinator(direct_dsn, settings=short()) as app:
        app.create_topic(TOPIC, 1)
        with app._pool.connection() as connection:
            connection.execute("set default_transaction_read_only = on")
            pid = connection.info.backend_pid
        with pytest.raises(UnavailableError):
            app.publish(TOPIC, 1)
        app.publish(TOPIC, 2)
        with app._pool.connection() as connection:
            assert connection.info.backend_pid != pid
