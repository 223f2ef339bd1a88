"""NOTIFY: at most one per transaction and topic, one bucket's lock, and nothing left of it after a rolled-back savepoint."""

import pytest
from support.patches import replaced, sql_text
from support.schedules import fails

BUCKETS = "select count(*) from pg_locks l where l.pid = %s and l.locktype = 'advisory' and l.mode = 'ExclusiveLock'"
# Every call is in a bucket of its own, as if 10 ms went by.
NEXT_BUCKET = [("clock_timestamp()", "(now() + nextval('coordinator.buckets') * interval '10 ms')")]


@pytest.fixture
def listener(db):
    made = db.session()
    made.run('listen coordinator_wake; listen "coordinator.topic_1"')
    return made


def heard(session):
    session.run("select 1")
    return [note.channel for note in session.connection.notifies(timeout=0.2)]


def buckets(db, session):
    return db.observer.one(BUCKETS, session.pid)


@pytest.fixture
def every_call_its_bucket(db):
    db.observer.run("create sequence coordinator.buckets")
    db.observer.run(replaced(sql_text("wake_readers"), *NEXT_BUCKET))


def test_publish__many_in_a_transaction__one_notify_and_one_lock(db, listener, every_call_its_bucket):
    a = db.session().begin()
    for _ in range(20):
        a.publish(wake=True)
    assert buckets(db, a) == 1
    a.commit()
    assert heard(listener) == ["coordinator.topic_1"]


def test_publish__two_topics_in_a_transaction__one_notify_each(db, listener, every_call_its_bucket):
    db.create_topic("u")
    listener.run('listen "coordinator.topic_2"')
    a = db.session().begin()
    for topic in ("t", "u", "t", "u"):
        a.publish(topic=topic, wake=True)
    assert buckets(db, a) == 2
    a.commit()
    assert sorted(heard(listener)) == ["coordinator.topic_1", "coordinator.topic_2"]


def test_savepoint__rolled_back__undoes_notify_lock_and_setting(db, listener, every_call_its_bucket):
    a = db.session().begin()
    a.run("savepoint s")
    a.publish(wake=True)
    a.run("rollback to savepoint s")
    assert buckets(db, a) == 0
    a.publish(wake=True)
    assert buckets(db, a) == 1
    a.commit()
    assert heard(listener) == ["coordinator.topic_1"]


def test_publish__another_notifier_of_the_bucket_is_open__skips_and_waits_for_nobody(db, listener):
    # One bucket for all: as if no time went by.
    db.observer.run(replaced(sql_text("wake_readers"), ("clock_timestamp()", "'epoch'::timestamptz")))
    a, b = db.session().begin(), db.session()
    a.publish(wake=True)
    b.run("set lock_timeout = '500ms'")
    b.begin()
    b.publish(wake=True)
    assert buckets(db, b) == 0
    b.commit()
    assert heard(listener) == []
    a.commit()
    assert heard(listener) == ["coordinator.topic_1"]


def test_publish__without_wake__says_nothing_and_can_be_prepared(db, listener):
    a = db.session().begin()
    a.publish(wake=False)
    assert buckets(db, a) == 0
    a.run("prepare transaction 'without_wake'")
    a.run("commit prepared 'without_wake'")
    assert heard(listener) == []


def test_publish__with_wake__cannot_be_prepared(db):
    a = db.session().begin()
    a.publish(wake=True)
    assert fails(a, "prepare transaction 'with_wake'").sqlstate == "0A000"


def test_publish__topic_that_wakes_nobody__says_nothing(db, listener):
    db.observer.run("select coordinator.create_topic('quiet', 1, p_wake => false)")
    listener.run('listen "coordinator.topic_2"')
    db.session().publish(topic="quiet", wake=True)
    assert heard(listener) == []
