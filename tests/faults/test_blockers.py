"""Case 12, R13: who holds a claim that nobody alive owns is named, and ended where that is allowed; then it is taken over."""

import asyncio
import contextlib
import threading

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from support.shell import GROUP, TOPIC, drain, owners, publish, query, short, wait_until

from coordinator import AsyncCoordinator, Coordinator

HOLD = "select 1 from coordinator.claims where partition = 0 for key share"


@pytest.fixture
def app(dsn):
    with Coordinator(dsn, client_id="test", settings=short()) as made:
        made.create_topic(TOPIC, 2)
        yield made


@pytest.fixture
def orphaned(app, dsn):
    """Both claims are owned by a process that is gone, and whose lease is over."""
    app.consumer(TOPIC, group=GROUP).start().close()
    query(
        dsn,
        "insert into coordinator.coordinators (coordinator, client_id, host, pid, state, lease_s, lease_until, started_at) "
        "values (gen_random_uuid(), 'gone', 'h', 1, 'alive', 1, clock_timestamp() - interval '5 s', clock_timestamp())",
    )
    query(
        dsn,
        "update coordinator.claims set epoch = epoch + 1, "
        "owner = (select coordinator from coordinator.coordinators where client_id = 'gone')",
    )


@contextlib.contextmanager
def held(dsn, name="culprit", **parameters):
    """A foreign session that holds a claim; it may be ended meanwhile."""
    with contextlib.closing(psycopg.connect(make_conninfo(dsn, application_name=name, **parameters))) as connection:
        connection.execute(HOLD)
        ((pid,),) = connection.execute("select pg_backend_pid()").fetchall()
        yield pid


def logged(caplog, event):
    return [record for record in caplog.records if record.msg == event]


def test_blocked_claims__held_by_an_open_transaction__names_the_backend(app, dsn, orphaned):
    publish(app, 2)
    assert app.blocked_claims() == []
    with held(dsn) as pid:
        (found,) = app.blocked_claims()
        assert (found.group, found.topic, found.partition) == (GROUP, TOPIC, 0)
        assert found.member_id is not None
        assert [(one.pid, one.prepared, one.application_name, one.state) for one in found.blockers] == [
            (pid, None, "culprit", "idle in transaction")
        ]
    # Its backend ends a moment after its client.
    wait_until(lambda: app.blocked_claims() == [], 30)


def test_blocked_claims__held_by_a_prepared_transaction__names_its_gid(app, dsn, orphaned):
    """It has no backend: pg_blocking_pids says 0, and nobody but an operator can end it."""
    with psycopg.connect(dsn) as connection:
        connection.execute(HOLD)
        connection.execute("prepare transaction 'left behind'")
    try:
        (found,) = app.blocked_claims()
        assert [(one.pid, one.prepared, one.state) for one in found.blockers] == [(None, "left behind", "prepared")]
    finally:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("rollback prepared 'left behind'")


def test_asyncio__blocked_claims__names_the_backend(app, dsn, orphaned):
    async def story():
        async with AsyncCoordinator(dsn, settings=short()) as other:
            return await other.blocked_claims()

    with held(dsn) as pid:
        (found,) = asyncio.run(story())
    assert [one.pid for one in found.blockers] == [pid]


def test_consumer__wants_a_claim_that_is_held__says_who_holds_it_and_takes_it_when_it_is_free(
    app, dsn, orphaned, caplog
):
    published = publish(app, 10)
    with held(dsn) as pid, app.consumer(TOPIC, group=GROUP) as consumer:
        wait_until(lambda: logged(caplog, "claim.blocked"), 30)
        record = logged(caplog, "claim.blocked")[0]
        assert (record.levelname, record.group, record.topic, record.partition, record.pid) == (
            *("WARNING", GROUP, TOPIC, 0, pid),
        )
        # Off by default: it is not ended.
        assert query(dsn, "select count(*) from pg_stat_activity where pid = %s", pid) == [(1,)]
        query(dsn, "select pg_terminate_backend(%s)", pid)
        assert sorted(message.value for message in drain(consumer, 10, 30)) == published
    assert logged(caplog, "blocker.ended") == []


@pytest.mark.parametrize("shell", ["threads", "asyncio"])
def test_end_blockers__own_role__is_ended_and_the_claim_is_taken_over(app, dsn, orphaned, caplog, shell):
    published = publish(app, 10)
    settings = short(end_blockers=True)

    async def story():
        async with (
            AsyncCoordinator(dsn, client_id="ender", settings=settings) as other,
            other.consumer(TOPIC, group=GROUP) as consumer,
        ):
            found = []
            async with asyncio.timeout(60):
                while len(found) < 10:
                    found += await consumer.poll(10, 1)
            return [message.value for message in found]

    with held(dsn) as pid:
        if shell == "asyncio":
            found = asyncio.run(story())
        else:
            with (
                Coordinator(dsn, client_id="ender", settings=settings) as other,
                other.consumer(TOPIC, group=GROUP) as consumer,
            ):
                found = [message.value for message in drain(consumer, 10, 60)]
        assert sorted(found) == published
        (record,) = logged(caplog, "blocker.ended")
        assert record.pids == [pid]


def test_end_blockers__another_role__is_named_and_left_alone(app, dsn, orphaned, caplog):
    role = "coordinator_test_other"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("drop role if exists {}").format(sql.Identifier(role)))
        connection.execute(sql.SQL("create role {} login superuser password 'x'").format(sql.Identifier(role)))
        try:
            with (
                held(dsn, user=role, password="x") as pid,
                Coordinator(dsn, settings=short(end_blockers=True)) as other,
                other.consumer(TOPIC, group=GROUP),
            ):
                wait_until(lambda: logged(caplog, "claim.blocked"), 30)
                assert logged(caplog, "claim.blocked")[0].role == role
                assert query(dsn, "select count(*) from pg_stat_activity where pid = %s", pid) == [(1,)]
                assert logged(caplog, "blocker.ended") == []
        finally:
            connection.execute(sql.SQL("drop role {}").format(sql.Identifier(role)))


def test_work_loop__a_hook_never_returns__the_process_loses_its_lease_and_others_go_on(app, dsn, caplog):
    """Heartbeats come from another thread: they must not keep a process alive that does nothing any more."""
    release = threading.Event()
    publish(app, 4)
    settings = short(round_trip_timeout_s=0.5, connect_timeout_s=1.0)
    with Coordinator(dsn, client_id="hung", settings=settings) as hung:
        consumer = hung.consumer(TOPIC, group=GROUP, on_dead_letter=lambda _letter: release.wait(60)).start()
        try:
            (message,) = consumer.poll(1, 10)
            message.reject("no")
            wait_until(lambda: logged(caplog, "loop.hung"), 30)
            with app.consumer(TOPIC, group=GROUP) as other:
                wait_until(lambda: set(owners(dsn).values()) == {"test"}, 30)
                release.set()
                # It comes round again, and back as a new member.
                wait_until(lambda: set(owners(dsn).values()) == {"test", "hung"}, 30)
                assert other.member_id
        finally:
            release.set()
            consumer.close()


def test_end_blockers__nobody_is_waited_for__ends_nobody(app, dsn):
    """The planner is free to call a function of a WHERE before the comparisons beside it."""
    with held(dsn, "bystander") as pid:
        query(dsn, "analyze")
        assert query(dsn, "select coordinator.end_blockers(pg_backend_pid())") == [([],)]
        assert query(dsn, "select count(*) from pg_stat_activity where pid = %s", pid) == [(1,)]
