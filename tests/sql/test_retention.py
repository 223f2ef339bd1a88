"""Retention: what anybody still needs is never retired, whoever comes at the same moment; what goes is told."""

import random

import psycopg
import pytest
from support.reader import Reader
from support.schedules import fails
from support.sessions import wait_until

from coordinator.protocol.placeholder import render

KEEP_S = 100


def move_clock(db, seconds):
    db.observer.run(
        "create or replace function coordinator.now_() returns timestamptz language sql volatile as "
        f"$$ select clock_timestamp() + interval '{seconds} s' $$"
    )


@pytest.fixture
def log(db):
    """Topic `t` with retention; segment 1 holds offsets 0 to 2 of partition 0 and is closed, segment 2 is current."""
    retain(db, retention_s=KEEP_S)
    session = db.session()
    for _ in range(3):
        session.publish()
    db.rotate()
    session.publish()
    return db


def retain(db, **changes):
    for name, value in changes.items():
        db.observer.run("select coordinator.alter_topic('t', jsonb_build_object(%s::text, %s::text))", name, value)


def retire(session):
    return [segment for _, segment in session.run("select r.topic, r.segment from coordinator.retire_segments() r")]


def drop(session, grace_s=0):
    return session.run("select d.segment, d.dropped, d.blocked_by from coordinator.drop_retired(%s) d", grace_s)


def skip(session):
    return session.run('select s."group", s.partition, s.offsets, s.reason from coordinator.skip_expired() s')


def kept(db):
    return db.observer.one("select t.first_segment, t.first_offsets from coordinator.topics t where t.name = 't'")


def tables(db):
    return [
        name
        for (name,) in db.observer.run("select relname from pg_class where relname ~ '^topic_1_s[0-9]+$' order by 1")
    ]


def settle(reader):
    """Settle what is there; returns the lowest offset that the group still needs."""
    reader.settle_down()
    return reader.committed


# ---- what is kept


def test_retire__closed_not_long_enough__keeps(log):
    settle(Reader(log))
    settle(Reader(log, partition=1))
    assert retire(log.observer) == []
    assert kept(log) == (1, None)


def test_retire__no_retention__keeps(log):
    retain(log, retention_s=None)
    move_clock(log, 10 * KEEP_S)
    assert retire(log.observer) == []


def test_retire__passed_by_every_group__goes_and_is_read_no_more(log):
    reader = Reader(log)
    settle(reader)
    move_clock(log, 2 * KEEP_S)
    assert retire(log.observer) == [1]
    assert kept(log) == (2, [3, 0])
    assert drop(log.observer) == [(1, True, None)]
    assert tables(log) == ["topic_1_s2"]
    assert drop(log.observer) == []
    log.session().publish()
    assert reader.settle_down() == [0, 1, 2, 3, 4]
    assert Reader(log).settle_down() == [3, 4]


def test_retire__one_group_has_not_passed__keeps(log):
    settle(Reader(log))
    behind = Reader(log, want=2)
    behind.exchange()
    move_clock(log, 2 * KEEP_S)
    assert retire(log.observer) == []
    assert settle(behind) == 4
    assert retire(log.observer) == [1]


def test_retire__a_parked_message__keeps_until_it_is_settled(log):
    reader = Reader(log)
    settle(reader)
    log.observer.run(
        'insert into coordinator.retries (group_id, topic_id, partition, "offset", fails, crashes, next_at, created_at) '
        "values (%s, 1, 0, 1, 1, 0, now(), now())",
        reader.group_id,
    )
    move_clock(log, 2 * KEEP_S)
    assert retire(log.observer) == []
    log.observer.run("update coordinator.retries set payload = '1'")
    assert retire(log.observer) == [1]


def test_retire__segments_in_the_middle__wait_for_the_oldest(log):
    for _ in range(2):
        log.rotate()
        log.session().publish()
    reader = Reader(log, want=1)
    reader.exchange()
    move_clock(log, 2 * KEEP_S)
    assert retire(log.observer) == []
    reader.want = 100
    assert settle(reader) == 6
    assert retire(log.observer) == [1, 2, 3]
    assert kept(log) == (4, [5, 0])
    # One per call, the oldest first.
    assert [drop(log.observer)[0][0] for _ in range(3)] == [1, 2, 3]


def test_retire__bytes_behind__goes_though_it_is_young(log):
    retain(log, retention_s=None, retention_bytes=1)
    settle(Reader(log))
    assert retire(log.observer) == [1]
    retain(log, retention_bytes=10**9)
    log.rotate()
    assert retire(log.observer) == []


# ---- at the same moment


def test_retire__group_starts_at_the_same_moment__is_seen(log):
    joining = log.session().begin()
    joining.run("select coordinator.join_group(null, 'new', array['t'])")
    move_clock(log, 2 * KEEP_S)
    assert retire(log.observer) == []
    joining.commit()
    assert retire(log.observer) == []
    assert Reader(log, group="new").settle_down() == [0, 1, 2, 3]
    assert retire(log.observer) == [1]


def test_join__segment_is_retired_at_the_same_moment__starts_behind_it(log):
    move_clock(log, 2 * KEEP_S)
    retiring = log.session().begin()
    assert retire(retiring) == [1]
    joining = log.session().start("select coordinator.join_group(null, 'new', array['t'])")
    log_wait(log)
    assert not joining.done
    retiring.commit()
    joining.result()
    starts = "select c.partition, c.start_offset from coordinator.claims c order by 1"
    assert log.observer.run(starts) == [(0, 3), (1, 0)]


def log_wait(db):
    wait_until(lambda: db.observer.one("select count(*) from pg_locks l where not l.granted"))


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
def test_retire__publisher_open_since_before_the_closing__keeps_until_it_is_gone(db, isolation):
    retain(db, retention_s=KEEP_S)
    publisher = db.session().begin(isolation)
    publisher.publish()
    db.rotate()
    move_clock(db, 2 * KEEP_S)
    assert retire(db.observer) == []
    publisher.commit()
    assert retire(db.observer) == [1]


def test_retire__publisher_stopped_before_its_insert__keeps(db):
    # It holds no lock on the segment's table yet, and will write into it.
    retain(db, retention_s=KEEP_S)
    publisher = db.session().stop_at("publish:insert")
    with db.gate("publish:insert") as gate:
        publishing = publisher.start_publish()
        gate.arrived()
        db.rotate()
        move_clock(db, 2 * KEEP_S)
        assert retire(db.observer) == []
    publishing.result()
    assert Reader(db).settle_down() == [0]
    assert retire(db.observer) == [1]


def test_retire__publisher_that_began_after_the_closing__is_not_waited_for(log):
    publisher = log.session().begin()
    publisher.publish()
    move_clock(log, 2 * KEEP_S)
    assert retire(log.observer) == [1]
    publisher.commit()
    assert Reader(log).settle_down() == [3, 4]


def test_retire__bounds_lost_between_setval_and_commit__keeps_until_they_are_known(db):
    retain(db, retention_s=KEEP_S)
    publisher = db.session().begin()
    publisher.publish()
    segment = db.observer.one("select coordinator.add_segment('t')")
    crashed = db.session().begin()
    crashed.run("select coordinator.open_segment('t', %s)", segment)
    crashed.rollback()
    move_clock(db, 2 * KEEP_S)
    assert retire(db.observer) == []
    assert rotate_due(db) == (0, 0, 0)
    move_clock(db, 4 * KEEP_S)
    # The publisher is open still, and was written down when the bounds were.
    assert retire(db.observer) == []
    publisher.commit()
    assert retire(db.observer) == [1]


def test_retire__closed_before_publishers_were_written_down__takes_those_of_now(db):
    retain(db, retention_s=KEEP_S)
    publisher = db.session().begin()
    publisher.publish()
    db.rotate()
    db.observer.run("update coordinator.segments set publishers = null")
    move_clock(db, 2 * KEEP_S)
    assert retire(db.observer) == []
    later = db.session().begin()
    later.publish()
    publisher.commit()
    assert retire(db.observer) == [1]
    later.commit()


def test_maintenance__two_at_once__one_works(log):
    move_clock(log, 2 * KEEP_S)
    first = log.session().begin()
    assert retire(first) == [1]
    assert retire(log.session()) == []
    first.rollback()
    # Killed between its steps: nothing has happened.
    assert kept(log) == (1, None)
    assert retire(log.session()) == [1]


def test_maintenance__outside_read_committed__is_refused(log):
    session = log.session().begin("repeatable read")
    assert fails(session, "select coordinator.retire_segments()").sqlstate == "KG007"


# ---- dropping


def test_drop__somebody_reads_the_topic__waits_for_nobody_and_names_him(log):
    move_clock(log, 2 * KEEP_S)
    retire(log.observer)
    dump = log.session()
    dump.run("set application_name = 'pg_dump'")
    dump.begin("repeatable read")
    dump.run("lock table coordinator.topic_1 in access share mode")
    ((segment, dropped, blocked_by),) = drop(log.observer)
    assert (segment, dropped) == (1, False)
    assert f"pid {dump.pid} pg_dump" in blocked_by
    assert log.observer.one("select s.blocked_by from coordinator.segments s where s.segment = 1") == blocked_by
    # Nobody waits behind anything.
    publisher = log.session()
    publisher.run("set lock_timeout = '1s'")
    publisher.publish()
    dump.commit()
    assert drop(log.observer) == [(1, True, None)]


def test_drop__just_retired__gives_readers_their_time(log):
    move_clock(log, 2 * KEEP_S)
    retire(log.observer)
    assert drop(log.observer, grace_s=10) == []
    move_clock(log, 3 * KEEP_S)
    assert drop(log.observer, grace_s=10) == [(1, True, None)]


def test_drop__killed_after_the_detach__goes_on(log):
    move_clock(log, 2 * KEEP_S)
    retire(log.observer)
    command = log.observer.one("select coordinator.detach_command('t', 1)")
    assert command == "alter table coordinator.topic_1 detach partition coordinator.topic_1_s1 concurrently"
    log.observer.run(command)
    assert log.observer.one("select coordinator.detach_command('t', 1)") is None
    assert drop(log.observer) == [(1, True, None)]
    assert tables(log) == ["topic_1_s2"]


def test_detach__cut_off__is_finalized(log):
    move_clock(log, 2 * KEEP_S)
    retire(log.observer)
    old = log.session().begin("repeatable read")
    old.run("select count(*) from coordinator.topic_1")
    detaching = log.session()
    pending = detaching.start(log.observer.one("select coordinator.detach_command('t', 1)"))
    log_wait(log)
    log.observer.run("select pg_cancel_backend(%s)", detaching.pid)
    with pytest.raises(psycopg.errors.QueryCanceled):
        pending.result()
    command = log.observer.one("select coordinator.detach_command('t', 1)")
    assert command == "alter table coordinator.topic_1 detach partition coordinator.topic_1_s1 finalize"
    log.session().publish()
    assert Reader(log).settle_down() == [3, 4]
    old.commit()
    log.observer.run(command)
    assert drop(log.observer) == [(1, True, None)]


def test_drop__detach_is_pending__goes_as_soon_as_it_is_free(log):
    move_clock(log, 2 * KEEP_S)
    retire(log.observer)
    old = log.session().begin("repeatable read")
    old.run("select count(*) from coordinator.topic_1")
    detaching = log.session()
    pending = detaching.start(log.observer.one("select coordinator.detach_command('t', 1)"))
    log_wait(log)
    log.observer.run("select pg_cancel_backend(%s)", detaching.pid)
    with pytest.raises(psycopg.errors.QueryCanceled):
        pending.result()
    assert drop(log.observer)[0][:2] == (1, False)
    old.commit()
    assert drop(log.observer) == [(1, True, None)]
    # A rotation attaches to the topic again.
    assert log.rotate() == 3


# ---- drop by age


def test_skip__topic_says_keep__skips_nothing(log):
    Reader(log)
    move_clock(log, 2 * KEEP_S)
    assert skip(log.observer) == []


def test_skip__topic_says_drop__moves_the_group_fences_its_owner_and_tells(log):
    retain(log, unconsumed="drop")
    reader = Reader(log, want=2, group="slow")
    reader.exchange()
    listener = log.session()
    channel = render("coordinator.skips", "coordinator")
    listener.connection.execute(psycopg.sql.SQL("listen {}").format(psycopg.sql.Identifier(channel)))
    move_clock(log, 2 * KEEP_S)
    before = reader.committed
    assert skip(log.observer) == [("slow", 0, f"{{[{before},3)}}", "retention")]
    assert skip(log.observer) == []
    told = log.observer.run("select s.partition, s.offsets::text, s.reason from coordinator.skips s")
    assert told == [(0, f"{{[{before},3)}}", "retention")]
    assert [n.channel for n in listener.connection.notifies(timeout=5, stop_after=1)] == [channel]
    status = reader.alone(
        "select e.status from coordinator.exchange(%s, array[%s::int], array[1], array[0], array[%s::bigint], array[%s::bigint], "
        "array[0::bigint], array['{[0,1)}'], array[1]) e",
        reader.id,
        reader.group_id,
        reader.epoch,
        reader.seq,
    )
    assert status == "fenced"
    assert retire(log.observer) == [1]
    reader.claim()
    reader.settle_down()
    assert reader.received[-1] == 3


def test_skip__parked_messages__go_unless_they_have_their_payload(log):
    retain(log, unconsumed="drop")
    reader = Reader(log)
    settle(reader)
    for offset, payload in ((0, None), (1, b"1")):
        log.observer.run(
            'insert into coordinator.retries (group_id, topic_id, partition, "offset", fails, crashes, next_at, created_at, payload) '
            "values (%s, 1, 0, %s, 1, 0, now(), now(), %s)",
            reader.group_id,
            offset,
            payload,
        )
    move_clock(log, 2 * KEEP_S)
    committed = reader.committed
    assert [row[2] for row in skip(log.observer)] == ["{[0,1)}"]
    assert log.observer.run('select r."offset" from coordinator.retries r') == [(1,)]
    reader.claim()
    assert reader.committed == committed
    assert retire(log.observer) == [1]


def test_skip__handler_is_acking__is_not_waited_for_and_its_ack_counts(log):
    retain(log, unconsumed="drop")
    reader = Reader(log, want=2)
    reader.exchange()
    handler = log.session().begin()
    handler.run(
        "select coordinator.ack(%s, %s, 1, 0, %s, array[1::bigint], array[0])", reader.id, reader.group_id, reader.epoch
    )
    move_clock(log, 2 * KEEP_S)
    assert len(skip(log.observer)) == 1
    handler.commit()
    reader.claim()
    assert log.observer.one("select count(*) from coordinator.acks") == 0
    assert reader.committed == 3


def test_skip__claim_is_held__is_left_for_the_next_time(log):
    retain(log, unconsumed="drop")
    reader = Reader(log, group="slow")
    holder = log.session().begin()
    holder.run("select 1 from coordinator.claims c for update")
    move_clock(log, 2 * KEEP_S)
    assert skip(log.observer) == []
    assert retire(log.observer) == []
    holder.commit()
    assert skip(log.observer) == [("slow", 0, "{[0,3)}", "retention")]
    assert reader.epoch == 1


def test_skip__expired_group__holds_nothing_back_any_more(log):
    Reader(log, group="gone")
    log.observer.run("delete from coordinator.members")
    log.observer.run("update coordinator.groups set unused_since = now(), expire_s = %s", 5 * KEEP_S)
    move_clock(log, 2 * KEEP_S)
    assert skip(log.observer) == []
    assert retire(log.observer) == []
    move_clock(log, 6 * KEEP_S)
    assert skip(log.observer) == [("gone", 0, "{[0,3)}", "expiry")]
    assert retire(log.observer) == [1]


def test_sweep__group_was_used_between_two_looks__has_not_expired(db):
    """A job that runs once an hour, for less than the pause between two sweeps, must not lose its place.

    Mutant: only a look while it runs notes that it was used.
    """
    job = Reader(db, group="job")
    db.observer.run("select coordinator.set_group_expiry('job', %s, 'delete')", KEEP_S)

    def sweep():
        return db.observer.one("select s.deleted_groups from coordinator.sweep(p_every_s => 0) s")

    for hour in range(3):
        db.observer.run("select coordinator.give_up(%s)", job.id)
        assert sweep() == []
        move_clock(db, (hour + 1) * (KEEP_S - 10))
        job = Reader(db, group="job")
    db.observer.run("select coordinator.give_up(%s)", job.id)
    assert sweep() == []
    move_clock(db, 4 * KEEP_S)
    assert sweep() == ["job"]


# ---- rotation


def rotate_due(db):
    return db.observer.run("select r.added, r.opened, r.failed from coordinator.rotate_due() r")[0]


def current(db):
    return db.observer.one(
        "select pg_sequence_last_value(t.segment_sequence) from coordinator.topics t where t.name = 't'"
    )


def test_rotate__old_enough__closes_in_two_calls(db):
    retain(db, segment_max_age_s=50)
    db.session().publish()
    assert rotate_due(db) == (0, 0, 0)
    move_clock(db, 60)
    assert rotate_due(db) == (1, 0, 0)
    assert current(db) == 1
    assert rotate_due(db) == (0, 1, 0)
    assert current(db) == 2
    # Nothing was published since: it is not closed, however old.
    move_clock(db, 200)
    assert rotate_due(db) == (0, 0, 0)


def test_rotate__no_age_given__is_an_eighth_of_the_retention(db):
    retain(db, retention_s=8000)
    db.session().publish()
    move_clock(db, 900)
    assert rotate_due(db) == (0, 0, 0)
    move_clock(db, 1100)
    assert rotate_due(db) == (1, 0, 0)


def test_rotate__large_enough__closes(db):
    retain(db, retention_s=None, segment_max_bytes=100_000)
    session = db.session()
    session.publish()
    move_clock(db, 10**6)
    assert rotate_due(db) == (0, 0, 0)
    session.publish(random.Random(1).randbytes(100_000).hex())
    assert rotate_due(db) == (1, 0, 0)


def test_rotate__two_at_once__make_one_segment(db):
    retain(db, segment_max_age_s=50)
    db.session().publish()
    move_clock(db, 60)
    first = db.session().begin()
    assert first.one("select r.added from coordinator.rotate_due() r") == 1
    assert rotate_due(db) == (0, 0, 0)
    first.commit()
    assert rotate_due(db) == (0, 1, 0)


def test_maintenance__went_well__is_written_down(log):
    retire(log.observer)
    assert log.observer.run(
        "select m.task, m.error from coordinator.maintenance m where m.succeeded_at is not null"
    ) == [("retire", None)]
    log.observer.run("select coordinator.fail_task('retire', 'why')")
    assert log.observer.one("select m.error from coordinator.maintenance m") == "why"
    retire(log.observer)
    assert log.observer.one("select m.error from coordinator.maintenance m") is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention_s", "0"),
        ("retention_s", "nan"),
        ("unconsumed", "burn"),
        ("segment_max_bytes", "1"),
        ("retention_bytes", "x"),
    ],
)
def test_alter_topic__bad_retention_value__is_refused(db, name, value):
    refused = fails(
        db.observer, "select coordinator.alter_topic('t', jsonb_build_object(%s::text, %s::text))", name, value
    )
    assert refused.sqlstate == "KG005"


@pytest.mark.parametrize("settings", [None, "[]", "7"])
def test_alter_topic__settings_that_are_no_object__are_refused(db, settings):
    assert fails(db.observer, "select coordinator.alter_topic('t', %s::jsonb)", settings).sqlstate == "KG005"


@pytest.mark.parametrize(("topics", "start"), [(None, "earliest"), (["t"], None)])
def test_join_group__null_where_something_is_wanted__is_refused(db, topics, start):
    refused = fails(db.observer, "select * from coordinator.join_group(null, 'g', %s::text[], %s)", topics, start)
    assert refused.sqlstate == "KG005"
