"""Who is declared dead: by the lease, or because its session is gone; and by whom not yet."""

import json
from uuid import uuid4

import pytest
from support.sessions import wait_until

LEASE_S = 10


def register(session):
    me = uuid4()
    session.run("select coordinator.register(%s, 'c', 'h', 1, %s)", me, LEASE_S)
    return me


def announced(db):
    """A coordinator that holds its session lock on a session of its own."""
    session = db.session()
    me = register(session)
    assert session.one("select coordinator.hold_session(%s, %s)", me, session.pid)
    return me, session


def lost(db):
    return dict(db.observer.run("select coordinator, session_pid from coordinator.lost_sessions()"))


def reap(db, observed_s, lost_sessions=None):
    text = json.dumps({str(me): pid for me, pid in (lost_sessions or {}).items()})
    return db.observer.one("select array(select r.member_id from coordinator.reap(%s, %s) r)", observed_s, text)


def test_reap__names_who_died_and_the_groups_it_was_in(db):
    db.observer.run("select coordinator.create_topic('orders', 1)")
    me = register(db.observer)
    for group in ("ledger", "billing"):
        db.observer.run("select coordinator.join_group(%s, %s, '{orders}', 'earliest', null)", me, group)
    db.observer.run("update coordinator.coordinators set lease_until = '-infinity'")
    assert db.observer.run("select * from coordinator.reap(%s)", LEASE_S) == [(me, "c", "h", 1, ["billing", "ledger"])]
    assert db.observer.run("select * from coordinator.reap(%s)", LEASE_S) == []


def gone(db, session):
    """End a session and wait until the server has noticed."""
    session.close()
    wait_until(lambda: db.observer.one("select count(*) = 0 from pg_stat_activity where pid = %s", session.pid))


def test_lost_sessions__session_is_up__names_nobody(db):
    announced(db)
    register(db.observer)
    assert lost(db) == {}


def test_reap__session_gone__is_dead_although_its_lease_runs(db):
    me, session = announced(db)
    gone(db, session)
    assert lost(db) == {me: session.pid}
    assert reap(db, LEASE_S, lost(db)) == [me]
    assert lost(db) == {}


def test_reap__observer_is_younger_than_a_lease__judges_nobody(db):
    """R6: after a restart or an outage everybody has a lease's time to renew, by whatever sign it is judged."""
    me, session = announced(db)
    gone(db, session)
    db.observer.run("update coordinator.coordinators set lease_until = '-infinity'")
    assert reap(db, LEASE_S - 1, lost(db)) == []
    assert reap(db, LEASE_S, {}) == [me]


def test_reap__session_announced_anew_meanwhile__lives(db):
    me, session = announced(db)
    gone(db, session)
    seen = lost(db)
    again = db.session()
    assert again.one("select coordinator.hold_session(%s, %s)", me, again.pid)
    assert reap(db, LEASE_S, seen) == []
    assert lost(db) == {}


def test_reap__nobody_was_seen_without_its_lock__leaves_the_lost_to_their_leases(db):
    _, session = announced(db)
    gone(db, session)
    assert reap(db, LEASE_S) == []


def test_hold_session__behind_a_pooler__announces_nothing(db):
    """The client was told another pid than that of the backend that runs its statements."""
    session = db.session()
    me = register(session)
    assert session.one("select coordinator.hold_session(%s, %s)", me, session.pid + 1) is False
    gone(db, session)
    assert lost(db) == {}


def test_heartbeat__through_another_backend__takes_the_announcement_back(db):
    """A pooler that tells the right pid once, and hands out another backend later; or a reconnect that is under way."""
    me, session = announced(db)
    db.observer.run("select coordinator.heartbeat(%s)", me)
    gone(db, session)
    assert lost(db) == {}
    assert reap(db, LEASE_S, {me: session.pid}) == []


def test_hold_session__declared_dead__is_told(db):
    me, session = announced(db)
    db.observer.run("update coordinator.coordinators set state = 'dead'")
    with pytest.raises(Exception, match="declared dead") as caught:
        session.run("select coordinator.hold_session(%s, %s)", me, session.pid)
    assert caught.value.sqlstate == "KG002"


def test_old_backend_holds_on__its_coordinator_reconnected_and_died__hides_nothing(db):
    """A half-open connection: the server keeps the old backend, and its lock, until TCP gives it up."""
    me, _half_open = announced(db)
    again = db.session()
    again.one("select coordinator.hold_session(%s, %s)", me, again.pid)
    gone(db, again)
    assert lost(db) == {me: again.pid}


def test_reap__session_gone__delays_of_its_charges_count_from_its_death(db):
    """Who waited two seconds for a sign of life has waited out the first crash's delay, too."""
    me, session = announced(db)
    group, topic = db.observer.run(
        "select j.group_id, j.topics->0->>'topic_id' from coordinator.join_group(%s, 'g', array['t']) j", me
    )[0]
    db.session().publish()
    one = (me, group, int(topic))
    db.observer.run("select coordinator.claim(%s, array[%s], array[%s], array[0])", *one)
    # What an exchange would have written.
    db.observer.run("update coordinator.progress set hwm = 1 where seq = (select max(seq) from coordinator.progress)")
    gone(db, session)
    assert reap(db, LEASE_S, lost(db)) == [me]
    (age_s,) = db.observer.run("select extract(epoch from coordinator.now_() - x.at) from coordinator.crashes x")[0]
    assert age_s >= 2
