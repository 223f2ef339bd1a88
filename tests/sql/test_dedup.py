"""Dedup keys: two sessions at once, windows, batches, isolation levels, savepoints."""

import json
import uuid

import psycopg
import pytest
from support.patches import replaced, sql_text
from support.sessions import wait_until

ONE = (
    'select p."offset", p.duplicate from coordinator.publish(%s, %s::jsonb, p_partition => 0, p_dedup_key => %s, '
    "p_on_duplicate => %s) p"
)
MANY = (
    "select p.offsets, p.duplicates from coordinator.publish_many('t', array_fill('\\x31'::bytea, array[cardinality(%s::text[])]), p_partitions => array_fill(0, array[cardinality(%s::text[])]), "
    "p_dedup_keys => %s::text[], p_on_duplicate => %s) p"
)


def once(session, key, *, topic="t", value=1, on_duplicate="return"):
    """Publish one message; returns (offset, duplicate)."""
    return session.one(ONE, topic, json.dumps(value), key, on_duplicate)


def start_once(session, key):
    return session.start(ONE, "t", "1", key, "return")


def batch(session, keys, on_duplicate="return"):
    return session.one(MANY, keys, keys, keys, on_duplicate)


def move_clock(db, seconds):
    db.observer.run(
        "create or replace function coordinator.now_() returns timestamptz language sql volatile as "
        f"$$ select clock_timestamp() + interval '{seconds} s' $$"
    )


def visible(db):
    return [row[0] for row in db.observer.run('select m."offset" from coordinator.topic_1 m order by 1')]


def waits(db, session):
    wait_until(
        lambda: db.observer.one(
            "select a.wait_event_type = 'Lock' from pg_stat_activity a where a.pid = %s", session.pid
        )
    )


def set_window(db, seconds):
    db.observer.run("update coordinator.topics set dedup_window_s = %s where name = 't'", seconds)


def test_repeat__first_committed__gets_the_firsts_place_and_publishes_nothing(db):
    a = db.session()
    assert once(a, "k") == (0, False)
    assert once(a, "k", value="other payload") == (0, True)
    assert once(a, "other") == (1, False)
    assert visible(db) == [0, 1]


def test_repeat__first_in_the_same_open_transaction__is_a_duplicate(db):
    a = db.session().begin()
    assert [once(a, "k"), once(a, "k")] == [(0, False), (0, True)]
    a.commit()


def test_repeat__asked_to_raise__tells_the_firsts_place(db):
    a = db.session()
    once(a, "k")
    with pytest.raises(psycopg.Error) as caught:
        once(a, "k", on_duplicate="raise")
    assert caught.value.sqlstate == "KG010"
    assert json.loads(caught.value.diag.message_detail).items() >= {"partition": 0, "offset": 0, "due_at": None}.items()
    assert visible(db) == [0]


def test_repeat__other_topic__is_none(db):
    db.create_topic("u")
    a = db.session()
    assert [once(a, "k"), once(a, "k", topic="u")] == [(0, False), (0, False)]


def test_two_at_once__first_commits__second_waits_and_gets_its_place(db):
    a, b = db.session().begin(), db.session()
    assert once(a, "k") == (0, False)
    second = start_once(b, "k")
    waits(db, b)
    a.commit()
    assert second.result() == [(0, True)]
    assert visible(db) == [0]


def test_two_at_once__first_rolls_back__second_publishes(db):
    a, b = db.session().begin(), db.session()
    once(a, "k")
    second = start_once(b, "k")
    waits(db, b)
    a.rollback()
    assert second.result() == [(1, False)]
    assert visible(db) == [1]


def test_two_at_once__second_waits__has_taken_no_offset_and_no_lock_of_an_open_publisher(db):
    """Otherwise readers would wait for one who waits for another."""
    a, b = db.session().begin(), db.session()
    once(a, "k")
    second = start_once(b, "k")
    waits(db, b)
    assert (db.high(), b.locks()) == (0, 0)
    a.commit()
    second.result()


def test_two_at_once__second_waits__publishers_with_other_keys_do_not(db):
    a, b, c = db.session().begin(), db.session(), db.session()
    once(a, "k")
    second = start_once(b, "k")
    waits(db, b)
    assert once(c, "other") == (1, False)
    a.commit()
    second.result()


def test_two_at_once__expired_key__second_waits_and_gets_the_new_place(db):
    a, b, c = db.session(), db.session(), db.session()
    once(a, "k")
    move_clock(db, 2 * 86400)
    b.begin()
    assert once(b, "k") == (1, False)
    second = start_once(c, "k")
    waits(db, c)
    b.commit()
    assert second.result() == [(1, True)]


def test_two_at_once__expired_key_renewed_between_look_and_update__second_gets_the_new_place(db):
    db.observer.run(
        replaced(
            sql_text("reserve_dedup_keys"),
            (
                "                update coordinator.dedup d\n",
                "                perform coordinator.gate('reserve:renew');\n                update coordinator.dedup d\n",
            ),
        )
    )
    a, b = db.session(), db.session().stop_at("reserve:renew")
    once(a, "k")
    move_clock(db, 2 * 86400)
    with db.gate("reserve:renew") as gate:
        second = start_once(b, "k")
        gate.arrived()
        assert once(a, "k") == (1, False)
    assert second.result() == [(1, True)]


def test_duplicate_in_open_transaction__holds_up_nobody(db):
    once(db.session(), "k")
    a, b = db.session().begin(), db.session()
    b.run("set lock_timeout = '5s'")
    assert once(a, "k") == (0, True)
    assert once(b, "k") == (0, True), "a row that is only read is not locked"
    a.commit()


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_strict_isolation__key_committed_after_the_snapshot__fails_with_40001(db, isolation):
    a, b = db.session(), db.session().begin(isolation)
    b.run("select count(*) from coordinator.topics")
    once(a, "k")
    with pytest.raises(psycopg.errors.SerializationFailure):
        once(b, "k")
    b.rollback()
    assert once(b.begin(isolation), "k") == (0, True)
    b.commit()


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_strict_isolation__key_is_new__publishes(db, isolation):
    a = db.session().begin(isolation)
    assert [once(a, "k"), once(a, "k"), batch(a, ["k", "l"])] == [(0, False), (0, True), ([0, 1], [True, False])]
    a.commit()
    assert visible(db) == [0, 1]


def test_savepoint__rolled_back__key_is_free_again(db):
    a = db.session().begin()
    a.run("savepoint s")
    once(a, "k")
    a.run("rollback to savepoint s")
    assert once(a, "k") == (1, False)
    a.commit()
    assert visible(db) == [1]


def test_prepared_transaction__keeps_the_key_until_it_is_committed(db):
    a, b = db.session().begin(), db.session()
    a.run("select coordinator.publish('t', '1', p_partition => 0, p_wake => false, p_dedup_key => 'k')")
    a.run("prepare transaction 'p'")
    second = start_once(b, "k")
    waits(db, b)
    a.run("commit prepared 'p'")
    assert second.result() == [(0, True)]


def test_batch__keys_repeat_within_it__later_ones_get_the_places_of_the_first(db):
    a = db.session()
    assert batch(a, ["a", "b", "a", None, "b"]) == ([0, 1, 0, 2, 1], [False, False, True, False, True])
    assert batch(a, ["c", "a", None]) == ([3, 0, 4], [False, True, False])
    assert visible(db) == [0, 1, 2, 3, 4]


def test_batch__all_repeated__publishes_nothing(db):
    a = db.session()
    batch(a, ["a", "b"])
    assert batch(a, ["b", "a"]) == ([1, 0], [True, True])
    assert visible(db) == [0, 1]


def test_batch__repeat_within_it_and_asked_to_raise__publishes_nothing(db):
    a = db.session()
    with pytest.raises(psycopg.Error) as caught:
        batch(a, ["a", "b", "a"], "raise")
    assert caught.value.sqlstate == "KG010"
    assert visible(db) == []
    assert once(a, "a") == (0, False), "the key was given back with the rest"


def test_batch__no_keys_repeat__tells_no_duplicates(db):
    assert batch(db.session(), ["a", "b"]) == ([0, 1], None)


def test_batches__same_keys_in_opposite_order__do_not_deadlock(db):
    keys = [f"k{number}" for number in range(200)]
    for attempt in range(20):
        a, b = db.session(), db.session()
        for session in (a, b):
            session.run("set deadlock_timeout = '20ms'")
        names = [f"{attempt}-{key}" for key in keys]
        first = a.start(MANY, names, names, names, "return")
        second = b.start(MANY, names[::-1], names[::-1], names[::-1], "return")
        (one,), (two,) = first.result(), second.result()
        assert one[0] == two[0][::-1]
        for session in (a, b):
            session.close()
    assert len(visible(db)) == 20 * len(keys)


def test_batches__some_keys_expired_and_some_new_in_opposite_order__do_not_deadlock(db):
    a = db.session()
    old = [f"old{number:03}" for number in range(100)]
    batch(a, old)
    move_clock(db, 2 * 86400)
    names = [name for pair in zip(old, [f"new{number:03}" for number in range(100)], strict=True) for name in pair]
    b, c = db.session(), db.session()
    for session in (b, c):
        session.run("set deadlock_timeout = '20ms'")
    first = b.start(MANY, names, names, names, "return")
    second = c.start(MANY, names[::-1], names[::-1], names[::-1], "return")
    (one,), (two,) = first.result(), second.result()
    assert one[0] == two[0][::-1]
    assert len(visible(db)) == 300


def test_window__within_and_after__repeats_and_publishes(db):
    set_window(db, 60)
    a = db.session()
    once(a, "k")
    move_clock(db, 59)
    assert once(a, "k") == (0, True)
    move_clock(db, 61)
    assert once(a, "k") == (1, False)
    move_clock(db, 119)
    assert once(a, "k") == (1, True), "the window began anew"


def test_window__none_set__keys_are_kept_for_a_day(db):
    a = db.session()
    once(a, "k")
    move_clock(db, 86400 - 5)
    assert once(a, "k") == (0, True)
    move_clock(db, 86400 + 5)
    assert once(a, "k") == (1, False)


def test_expire_dedup__expired_and_live_keys__deletes_the_expired_up_to_the_limit(db):
    a = db.session()
    batch(a, ["a", "b", "c"])
    assert a.one("select coordinator.expire_dedup(100)") == 0
    move_clock(db, 2 * 86400)
    once(a, "b")
    assert [a.one("select coordinator.expire_dedup(1)") for _ in range(3)] == [1, 1, 0]
    assert once(a, "b") == (3, True)


def test_expire_dedup__row_is_being_renewed__leaves_it(db):
    a, b = db.session(), db.session().begin()
    once(a, "k")
    move_clock(db, 2 * 86400)
    once(b, "k")
    a.run("set lock_timeout = '5s'")
    assert a.one("select coordinator.expire_dedup(100)") == 0
    b.commit()
    assert once(a, "k") == (1, True)


def test_message_id__topic_without_window__is_not_compared(db):
    a, message_id = db.session(), uuid.uuid4()
    call = "select p.\"offset\", p.duplicate from coordinator.publish('t', '1', p_partition => 0, p_message_id => %s) p"
    assert [a.one(call, message_id), a.one(call, message_id)] == [(0, False), (1, False)]


def test_message_id__topic_with_window__is_a_dedup_key(db):
    set_window(db, 60)
    a, message_id = db.session(), uuid.uuid4()
    call = (
        "select p.\"offset\", p.duplicate, p.message_id from coordinator.publish('t', '1', p_partition => 0, "
        "p_message_id => %s, p_dedup_key => %s) p"
    )
    assert a.one(call, message_id, None) == (0, False, message_id)
    assert a.one(call, message_id, None) == (0, True, message_id)
    assert a.one(call, message_id, "key of its own") == (1, False, message_id)
    assert a.one(call, uuid.uuid4(), str(message_id)) == (0, True, message_id), "one space of names for both"
    a.run("select coordinator.publish('t', '1'), coordinator.publish('t', '1')")
    assert len(visible(db)) == 4, "ids that the server makes are not kept"
    assert db.observer.one("select count(*) from coordinator.dedup") == 2


@pytest.mark.parametrize(
    "arguments",
    [
        "p_dedup_keys => array['a']",
        "p_dedup_keys => array['a', 'b'], p_on_duplicate => 'ignore'",
        "p_dedup_keys => array['a', 'b'], p_on_duplicate => null",
        "p_dedup_keys => array['a', repeat('x', 1025)]",
        "p_delays_s => array[1]",
        "p_delays_s => array[1, 'nan'::double precision]",
        "p_delays_s => array[1, 'infinity'::double precision]",
        "p_delays_s => array[1, 4e9]",
        "p_deliver_ats => array[null, 'infinity'::timestamptz]",
        "p_deliver_ats => array[null, '9999-01-01 00:00:00+00'::timestamptz]",
        "p_deliver_ats => array[null, '290000-01-01'::timestamptz]",
        "p_delays_s => array[1, 1], p_deliver_ats => array[null, now()]",
    ],
)
def test_arguments__wrong__are_refused_with_kg005(db, arguments):
    a = db.session()
    with pytest.raises(psycopg.Error) as caught:
        a.run(f"select coordinator.publish_many('t', array['1'::bytea, '2'], {arguments})")
    assert caught.value.sqlstate == "KG005"
    assert (
        db.observer.one(
            "select (select count(*) from coordinator.dedup) + (select count(*) from coordinator.scheduled)"
        )
        == 0
    )


def test_dedup__table_has_grown_since_the_plan_was_made__reads_a_few_rows_for_each_key(db):
    """A plan that reads the whole table, or all keys of the topic, would make every publish slower as they grow."""
    a = db.session()
    a.run("set plan_cache_mode = force_generic_plan")
    batch(a, ["first", "second", "first"])
    db.observer.run(
        "insert into coordinator.dedup select 1, 'filler' || n, gen_random_uuid(), 0, n, null, now() + interval '1 day' "
        "from generate_series(1, 20000) n"
    )
    db.observer.run("select pg_stat_reset()")
    for number in range(20):
        once(a, f"k{number}")
        once(a, f"k{number}")
        batch(a, [f"b{number}", f"k{number}", f"b{number}"])
    a.close()
    counters = "select t.seq_tup_read + t.idx_tup_fetch from pg_stat_all_tables t where t.relid = 'coordinator.dedup'::regclass"
    wait_until(lambda: (db.observer.one(counters) or 0) > 0)
    assert db.observer.one(counters) < 1000
