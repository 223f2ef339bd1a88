"""Who is taken for dead, how soon, and who is not: sessions that are gone, and connections that are only new."""

import time

import pytest
from support.processes import Process, Task
from support.shell import GROUP, TOPIC, epochs, owners, publish, query, short, terminate, wait_until

from coordinator import Coordinator

LEASE_S = 6.0
SETTINGS = {
    "lease_s": LEASE_S,
    "heartbeat_s": 1.0,
    "self_fence_margin_s": 1.0,
    "membership_poll_s": 0.3,
    "rebalance_debounce_s": 0.1,
}


@pytest.fixture
def app(dsn):
    with Coordinator(dsn, client_id="test", settings=short(**SETTINGS)) as made:
        made.create_topic(TOPIC, 4)
        yield made


@pytest.mark.direct("tells by its session that a process is dead")
def test_sigkill__observer_is_up_for_a_lease__takes_over_by_the_session_and_not_by_the_lease(app, dsn, tmp_path):
    with app.consumer(TOPIC, group=GROUP) as heir:
        wait_until(lambda: {*owners(dsn).values()} == {"test"})
        up_s = time.monotonic()
        with Process(Task(dsn, TOPIC, GROUP, "victim", settings=SETTINGS, freeze_after=0), tmp_path) as victim:
            wait_until(lambda: {*owners(dsn).values()} == {"test", "victim"}, 30)
            publish(app, 20)
            wait_until(lambda: victim.events("frozen"), 30)
            while time.monotonic() < up_s + LEASE_S:
                heir.poll(10, 0.1)
            # Renewed just now: by the lease alone it would take nearly all of it.
            before = query(dsn, "select lease_until from coordinator.coordinators where client_id = 'victim'")
            wait_until(
                lambda: (
                    query(dsn, "select lease_until from coordinator.coordinators where client_id = 'victim'") != before
                )
            )
            victim.kill()
            killed_s = time.monotonic()
            wait_until(lambda: {*owners(dsn).values()} == {"test"}, 30)
            took_s = time.monotonic() - killed_s
            assert 2.0 <= took_s < LEASE_S - 0.5
            lease = query(
                dsn, "select lease_until > clock_timestamp() from coordinator.coordinators where state = 'dead'"
            )
            assert lease == [(True,)]


@pytest.mark.direct("ends the sessions of one client")
def test_control_backend__ended_again_and_again__its_process_lives_and_keeps_everything(app, dsn):
    """A session that is gone is not missed for as long as its process takes to have another."""
    with app.consumer(TOPIC, group=GROUP) as one, app.consumer(TOPIC, group=GROUP) as other:
        wait_until(lambda: len(query(dsn, "select 1 from coordinator.members")) == 2)
        wait_until(lambda: one.at_end(1) and other.at_end(1), 30)
        before, members = epochs(dsn), (one.member_id, other.member_id)
        # The observer is to be old enough to judge; only one of the two loses its sessions.
        pid = query(dsn, "select session_pid from coordinator.coordinators where coordinator = %s", one.member_id)[0][0]
        until_s = time.monotonic() + LEASE_S + 3.0
        while time.monotonic() < until_s:
            query(dsn, "select pg_terminate_backend(%s)", pid)
            pid = wait_until(
                lambda pid=pid: query(
                    dsn,
                    "select session_pid from coordinator.coordinators where coordinator = %s and session_pid <> %s",
                    one.member_id,
                    pid,
                ),
                30,
            )[0][0]
            time.sleep(0.3)
        assert (one.member_id, other.member_id) == members
        assert epochs(dsn) == before
        assert query(dsn, "select 1 from coordinator.crashes") == []


@pytest.mark.direct("ends the sessions of all clients, its own apart")
def test_all_connections__ended_at_once__nobody_is_declared_dead(app, dsn):
    """R6, as a restart of the server looks to its clients: the first one back must not judge those who are a moment later."""
    with app.consumer(TOPIC, group=GROUP) as one, app.consumer(TOPIC, group=GROUP) as other:
        wait_until(lambda: one.at_end(1) and other.at_end(1), 30)
        members = {one.member_id, other.member_id}
        query(dsn, "update coordinator.coordinators set lease_until = clock_timestamp() - interval '1 s'")
        assert terminate(dsn, "coordinator") >= 2
        wait_until(lambda: len(query(dsn, "select 1 from coordinator.coordinators where lease_until > now()")) == 2, 30)
        assert {one.member_id, other.member_id} == members
        assert query(dsn, "select 1 from coordinator.coordinators where state = 'dead'") == []
