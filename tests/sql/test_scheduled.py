"""Messages for later: when they are moved, by whom, and what a message or topic that refuses does to the others (R14)."""

import datetime as dt

import psycopg
import pytest
from support.sessions import wait_until

PUBLISH = (
    'select p."partition", p."offset", p.message_id, p.duplicate, p.due_at from coordinator.publish(%s, to_jsonb(%s::text), '
    "p_partition => 0, p_delay_s => %s, p_deliver_at => %s, p_dedup_key => %s) p"
)


def later(session, value, delay_s=None, *, topic="t", at=None, key=None):
    return session.one(PUBLISH, topic, str(value), delay_s, at, key)


def move(session, limit=1000):
    """Returns (moved, failed, next_s)."""
    return session.one("select m.moved, m.failed, m.next_s from coordinator.move_due(%s) m", limit)


def tick(session):
    return session.one("select m.moved, m.failed, m.expired, m.next_s from coordinator.maintain_publishing() m")


def move_clock(db, seconds):
    db.observer.run(
        "create or replace function coordinator.now_() returns timestamptz language sql volatile as "
        f"$$ select clock_timestamp() + interval '{seconds} s' $$"
    )


def values(db, topic_id=1):
    return [
        row[0]
        for row in db.observer.run(
            f"select convert_from(m.payload, 'UTF8')::json #>> '{{}}' from coordinator.topic_{topic_id} m "
            'order by m.partition, m."offset"'
        )
    ]


def waiting(db):
    return db.observer.one("select count(*) from coordinator.scheduled")


def limit_backlog(db, topic, limit):
    """A group that reads nothing, and a limit: the topic refuses from the limit's message on."""
    db.observer.run("select coordinator.join_group(null, 'slow', array[%s])", topic)
    db.observer.run("update coordinator.topics set max_backlog = %s where name = %s", limit, topic)


def test_delay__not_due__is_not_there_and_has_no_place(db):
    a = db.session()
    partition, offset, _, duplicate, due_at = later(a, "x", 60)
    assert (partition, offset, duplicate) == (None, None, False)
    assert abs((due_at - a.one("select now()")).total_seconds() - 60) < 2
    moved, failed, next_s = move(a)
    assert (moved, failed) == (0, 0)
    assert 55 < next_s <= 60
    assert (values(db), waiting(db), db.high()) == ([], 1, -1)


def test_delay__due__is_published_once_with_its_data(db):
    a = db.session()
    call = (
        "select p.message_id from coordinator.publish_bytes('t', %s, 'key', '{\"h\": 1}', p_content_type => 'a/b', "
        "p_delay_s => 60) p"
    )
    message_id = a.one(call, b"\x00\xff")
    move_clock(db, 61)
    assert move(a)[:2] == (1, 0)
    assert move(a) == (0, 0, None)
    partition = a.one("select coordinator.partition_of('key', 2)")
    row = a.one(
        "select m.partition, m.message_id, m.key, m.headers, m.content_type, m.payload from coordinator.topic_1 m"
    )
    assert row == (partition, message_id, "key", {"h": 1}, "a/b", b"\x00\xff")
    assert waiting(db) == 0


@pytest.mark.parametrize(("delay_s", "at"), [(0, None), (-5, None), (None, dt.datetime(2020, 1, 1, tzinfo=dt.UTC))])
def test_time__has_passed__is_published_now(db, delay_s, at):
    _, offset, _, _, due_at = later(db.session(), "x", delay_s, at=at)
    assert (offset, due_at, values(db), waiting(db)) == (0, None, ["x"], 0)


def test_transaction__rolled_back__schedules_nothing(db):
    a = db.session().begin()
    later(a, "x", 60)
    a.rollback()
    assert waiting(db) == 0


def test_batch__some_now_some_later__keeps_the_order_of_places(db):
    a = db.session()
    partitions, offsets, due = a.one(
        "select p.partitions, p.offsets, array(select u.d is not null from unnest(p.due_ats) as u(d)) from "
        "coordinator.publish_many('t', array['\"a\"'::bytea, '\"b\"', '\"c\"'], p_partitions => array[0, 1, 0], "
        "p_delays_s => array[null, 5, null]) p"
    )
    assert (partitions, offsets, due) == ([0, None, 0], [0, None, 1], [False, True, False])
    move_clock(db, 6)
    move(a)
    assert values(db) == ["a", "c", "b"]


def test_batch__a_later_one_would_be_refused__is_refused_now(db):
    a = db.session()
    for arguments, state in (
        ("array[null::bytea]", "KG005"),
        ("array[convert_to(repeat('x', 1048577), 'UTF8')]", "KG006"),
        ("array['1'::bytea], p_partitions => array[2]", "KG005"),
        ("array['1'::bytea], p_headers => array['no json']", "KG005"),
        ("array['1'::bytea], p_headers => array['{']", "22P02"),
    ):
        with pytest.raises(psycopg.Error) as caught:
            a.run(f"select coordinator.publish_many('t', {arguments}, p_delays_s => array[9])")
        assert caught.value.sqlstate == state
    assert waiting(db) == 0


def test_move__several_due__in_the_order_of_their_times(db):
    a = db.session()
    for value, delay_s in (("third", 30), ("first", 10), ("second", 20), ("later", 100)):
        later(a, value, delay_s)
    move_clock(db, 40)
    assert move(a)[:2] == (3, 0)
    assert values(db) == ["first", "second", "third"]


def test_move__limit__leaves_the_rest_and_says_come_again(db):
    a = db.session()
    for number in range(5):
        later(a, number, 1)
    move_clock(db, 2)
    moved, failed, next_s = move(a, 2)
    assert (moved, failed, next_s) == (2, 0, 0)
    assert move(a, 2)[0] + move(a, 2)[0] == 3
    assert values(db) == list("01234")


def test_move__two_movers_at_once__each_moves_other_rows_and_none_waits(db):
    a, b = db.session().begin(), db.session()
    for number in range(4):
        later(db.observer, number, 1)
    move_clock(db, 2)
    assert move(a, 2)[0] == 2
    assert move(b, 10)[0] == 2
    a.commit()
    assert sorted(values(db)) == list("0123")


def test_move__many_movers_and_rows__each_row_exactly_once(db):
    for number in range(300):
        later(db.observer, number, 1)
    move_clock(db, 2)
    movers = [db.session() for _ in range(4)]
    while waiting(db):
        for pending in [mover.start("select coordinator.move_due(17)") for mover in movers]:
            pending.result()
    assert sorted(map(int, values(db))) == list(range(300))


@pytest.mark.parametrize("step", ["publish:lock", "publish:again", "publish:insert"])
def test_move__mover_killed_in_the_middle__loses_nothing_and_repeats_nothing(db, step):
    a = db.session().stop_at(step)
    for number in range(3):
        later(db.observer, number, 1)
    move_clock(db, 2)
    with db.gate(step) as gate:
        moving = a.start("select coordinator.move_due()")
        gate.arrived()
        db.observer.run("select pg_terminate_backend(%s)", a.pid)
        with pytest.raises(psycopg.OperationalError):
            moving.result()
    assert waiting(db) == 3
    wait_until(lambda: move(db.observer)[0] == 3)
    assert values(db) == list("012")


def test_move__strict_isolation__is_refused(db):
    a = db.session().begin("repeatable read")
    with pytest.raises(psycopg.Error) as caught:
        move(a)
    assert caught.value.sqlstate == "KG007"


# ---- R14


def test_r14__topic_refuses__others_are_moved_and_it_follows_when_it_takes_messages(db):
    refused = db.create_topic("refused")
    a = db.session()
    for number in range(3):
        later(a, f"r{number}", 1, topic="refused")
        later(a, f"t{number}", 1)
    limit_backlog(db, "refused", 1)
    a.run("select coordinator.publish('refused', '\"before\"')")
    move_clock(db, 2)
    moved, failed, next_s = move(a)
    assert (moved, failed) == (3, 1)
    assert 0 < next_s <= 1
    assert values(db) == ["t0", "t1", "t2"]
    assert a.run(
        "select distinct s.topic, s.attempts, s.paused_until is not null from coordinator.scheduled_messages s"
    ) == [("refused", 0, True)]
    assert "KG009" in a.one("select min(s.last_error) from coordinator.scheduled_messages s")
    later(a, "t3", 1)
    move_clock(db, 3.5)
    assert move(a)[:2] == (1, 1), "still refused, still in nobody's way"
    db.observer.run("update coordinator.topics set max_backlog = null where name = 'refused'")
    move_clock(db, 20)
    assert move(a)[:2] == (3, 0)
    assert values(db, refused) == ["before", "r0", "r1", "r2"]
    assert a.one("select count(*) from coordinator.schedule_pauses") == 0


def test_r14__topic_refuses_thousands__writes_none_of_their_rows(db):
    db.create_topic("refused")
    a = db.session()
    a.run(
        "select coordinator.publish_many('refused', array_fill('1'::bytea, array[5000]), "
        "p_delays_s => array_fill(1::double precision, array[5000]))"
    )
    later(a, "t", 1)
    limit_backlog(db, "refused", 1)
    a.run("select coordinator.publish('refused', '\"before\"')")
    move_clock(db, 2)
    before = a.run("select max(s.xmin::text::bigint) from coordinator.scheduled s where s.topic_id = 2")
    assert move(a)[:2] == (1, 1)
    assert a.run("select max(s.xmin::text::bigint) from coordinator.scheduled s where s.topic_id = 2") == before
    assert values(db) == ["t"]


def test_r14__topic_with_many_due__leaves_room_for_the_others_of_the_round(db):
    other = db.create_topic("u")
    a = db.session()
    for number in range(50):
        later(a, number, 1)
    later(a, "u", 2, topic="u")
    move_clock(db, 3)
    move(a, 10)
    assert values(db, other) == ["u"]


def test_r14__one_bad_row__others_are_moved_and_it_is_tried_again_later_each_time(db):
    a = db.session()
    for value in ("a", "bad", "c"):
        later(a, value, 1)
    # Room for the short ones only.
    db.observer.run("update coordinator.topics set max_message_bytes = 4 where name = 't'")
    move_clock(db, 2)
    assert move(a)[:2] == (2, 1)
    assert values(db) == ["a", "c"]
    pauses = []
    for _ in range(3):
        attempts, error, pause = a.one(
            "select s.attempts, s.last_error, round(extract(epoch from s.next_at - coordinator.now_()))::int "
            "from coordinator.scheduled s"
        )
        assert error.startswith("KG006")
        pauses.append((attempts, pause))
        db.observer.run("update coordinator.scheduled set next_at = coordinator.now_()")
        move(a)
    assert pauses == [(1, 1), (2, 2), (3, 4)]
    db.observer.run("update coordinator.topics set max_message_bytes = 5 where name = 't'")
    db.observer.run("update coordinator.scheduled set next_at = coordinator.now_()")
    assert move(a)[:2] == (1, 0)
    assert values(db) == ["a", "c", "bad"]


def test_r14__topics_table_is_locked__others_are_moved_in_time(db):
    other = db.create_topic("u")
    a, b = db.session(), db.session().begin()
    later(a, "t", 1)
    later(a, "u", 1, topic="u")
    b.run("lock table coordinator.topic_1_s1 in access exclusive mode")
    move_clock(db, 2)
    assert move(a)[:2] == (1, 1)
    assert values(db, other) == ["u"]
    b.rollback()
    move_clock(db, 20)
    assert move(a)[:2] == (1, 0)


def test_r14__key_of_the_message_is_locked_by_somebody__is_moved_all_the_same(db):
    a, b = db.session(), db.session().begin()
    later(a, "x", 1, key="k")
    b.run("select 1 from coordinator.dedup d for update")
    move_clock(db, 2)
    assert move(a)[:2] == (1, 0)
    b.rollback()


# ---- with dedup keys


def test_dedup__repeat_before_it_is_moved__tells_when_the_first_is_due(db):
    a = db.session()
    _, _, message_id, _, due_at = later(a, "x", 60, key="k")
    assert later(a, "x", 90, key="k") == (None, None, message_id, True, due_at)
    assert later(a, "x", key="k") == (None, None, message_id, True, due_at)
    move_clock(db, 61)
    move(a)
    assert values(db) == ["x"]


def test_dedup__repeat_after_it_was_moved__tells_its_place(db):
    a = db.session()
    later(a, "before")
    _, _, message_id, _, _ = later(a, "x", 60, key="k")
    move_clock(db, 61)
    move(a)
    assert later(a, "x", 60, key="k") == (0, 1, message_id, True, None)
    assert later(a, "x", key="k") == (0, 1, message_id, True, None)


def test_dedup__window_shorter_than_the_delay__begins_when_it_is_due(db):
    db.observer.run("update coordinator.topics set dedup_window_s = 10 where name = 't'")
    a = db.session()
    later(a, "x", 60, key="k")
    move_clock(db, 30)
    assert later(a, "x", 60, key="k")[3]
    move_clock(db, 65)
    move(a)
    assert later(a, "x", key="k")[3]
    move_clock(db, 75)
    assert not later(a, "x", key="k")[3]


# ---- one at a time


def test_maintain__another_process_is_at_it__does_nothing_and_comes_again_in_a_second(db):
    a, b = db.session().begin(), db.session()
    later(db.observer, "x", 1)
    move_clock(db, 2)
    assert tick(a)[0] == 1
    later(db.observer, "y", -1, topic="t")
    assert tick(b) == (0, 0, 0, 1)
    a.commit()


def test_maintain__nothing_scheduled__comes_again_in_a_second(db):
    assert tick(db.session()) == (0, 0, 0, 1)


def test_maintain__next_is_due_sooner__says_so(db):
    a = db.session()
    later(a, "x", 0.5)
    assert 0 < tick(a)[3] <= 0.5
