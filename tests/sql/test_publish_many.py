"""The order of a publisher's steps, what it waits for, and what others see of it at each step."""

import statistics
import time

import psycopg
import pytest
from support.patches import PUBLISH_STEPS
from support.reader import Reader
from support.schedules import fails
from support.sessions import second_schema, wait_until

ISOLATIONS = ["read committed", "repeatable read", "serializable"]


def held(db, partition, topic_id=1):
    """Who holds a partition's lock as an open publisher, or the topic's."""
    return db.observer.one(
        "select p.holders from coordinator.gap_pass(array[%s::int], array[%s::int], array['{}']) p", topic_id, partition
    )


@pytest.mark.parametrize("step", PUBLISH_STEPS)
def test_publish__stopped_at_a_step__is_seen_from_the_lock_on_until_the_commit(db, step):
    a = db.session().stop_at(step).begin()
    with db.gate(step) as gate:
        publishing = a.start_publish()
        gate.arrived()
        locked = step != "publish:lock"
        handed_out = step in ("publish:again", "publish:insert")
        assert (len(held(db, 0)) == 1, db.high() == 0) == (locked, handed_out)
    publishing.result()
    assert len(held(db, 0)) == 1
    a.commit()
    assert held(db, 0) == []


def test_publish__first_into_an_empty_topic__is_read(db):
    reader = Reader(db)
    assert db.high() == -1
    assert reader.settle_down() == []
    a = db.session().begin()
    a.publish()
    assert reader.settle_down() == []
    a.commit()
    assert reader.settle_down() == [0]


def test_publish__last_one_rolled_back__tail_is_burnt_and_polling_becomes_quiet(db):
    a, reader = db.session(), Reader(db)
    a.publish()
    a.begin()
    a.publish()
    a.rollback()
    reader.settle_down()
    assert (reader.received, reader.burnt) == ([0], [1])
    assert db.observer.one("select o.lag from coordinator.offsets o where o.partition = 0") == 0
    assert reader.exchange() == "idle"
    assert not reader.gaps


def test_publish__rolled_back__gap_is_passed_within_three_exchanges(db):
    a, b, reader = db.session().begin(), db.session(), Reader(db, order="partition")
    a.publish()
    assert b.publish() == 1
    reader.settle_down()
    assert reader.received == []
    a.rollback()
    before = reader.exchange_count
    while not reader.received:
        reader.poll()
    assert reader.received == [1]
    assert reader.exchange_count - before <= 3


def test_publish__open_in_one_partition__delays_readers_in_order_of_that_partition_only(db):
    a, b = db.session().begin(), db.session()
    a.publish(partition=0)
    readers = [Reader(db, 0, order="partition"), Reader(db, 1, order="partition"), Reader(db, 0, order="none")]
    b.publish(partition=0)
    b.publish(partition=1)
    assert [reader.settle_down() for reader in readers] == [[], [0], [1]]
    a.commit()
    assert [reader.settle_down() for reader in readers] == [[0, 1], [0], [1, 0]]


def test_publish__another_open_in_the_partition__does_not_wait(db):
    a, b = db.session().begin(), db.session()
    a.publish()
    b.publish()
    times_s = []
    for _ in range(20):
        began_s = time.perf_counter()
        b.publish()
        times_s.append(time.perf_counter() - began_s)
    print(f"median {statistics.median(times_s) * 1000:.2f} ms")
    assert statistics.median(times_s) < 0.01


def test_publish__two_partitions_in_opposite_order__neither_waits_nor_deadlocks(db):
    a, b = db.session(), db.session()
    for session in (a, b):
        session.run("set lock_timeout = '500ms'")
        session.begin()
    a.publish(partition=0)
    b.publish(partition=1)
    a.publish(partition=1)
    b.publish(partition=0)
    a.commit()
    b.commit()
    assert sorted(Reader(db, 0).settle_down()) == [0, 1]
    assert sorted(Reader(db, 1).settle_down()) == [0, 1]


def test_savepoint__rolled_back__undoes_lock_and_setting_alike(db):
    a, b, reader = db.session().begin(), db.session(), Reader(db)
    a.run("savepoint s")
    a.publish()
    assert (a.locks(), setting(a)) == (1, "0")
    a.run("rollback to savepoint s")
    assert (a.locks(), setting(a)) == (0, "")
    b.publish()
    # The burnt one delays nothing, though its transaction is open; what it publishes now is seen again.
    assert reader.settle_down() == [1]
    assert reader.burnt == [0]
    assert a.publish() == 2
    assert (a.locks(), setting(a)) == (1, "0")
    reader.settle_down()
    a.commit()
    assert reader.settle_down() == [1, 2]


def test_savepoint__released__lock_stays_until_the_commit(db):
    a, reader = db.session().begin(), Reader(db)
    a.run("savepoint s")
    a.run("savepoint inner_one")
    a.publish()
    a.run("release savepoint s")
    assert (a.locks(), setting(a)) == (1, "0")
    reader.settle_down()
    a.commit()
    assert reader.settle_down() == [0]


def test_plpgsql_block__cursor_fails_in_it__locks_of_earlier_rows_stay(db):
    # A cursor's locks are released with the block in which it fails, its earlier rows are not.
    a, reader = db.session().begin(), Reader(db)
    a.run(
        """
        do $$
        declare
            c cursor for select coordinator.publish('t', v.p::jsonb, p_partition => 0, p_wake => false)
                         from (values ('1'), (null)) as v(p);
            r record;
        begin
            open c;
            loop
                begin
                    fetch c into r;
                exception when others then
                    exit;
                end;
            end loop;
        end
        $$
        """
    )
    assert a.locks() == 1
    reader.settle_down()
    a.commit()
    assert reader.settle_down() == [0]


def test_savepoint__rolled_back_past_the_topics_lock__falls_back_to_the_partitions(db):
    db.create_topic("wide", 20)
    a = db.session().begin()
    publish_to(a, range(2))
    a.run("savepoint s")
    publish_to(a, range(2, 18))
    assert (a.locks(), setting(a, "wide")) == (3, "*")
    assert [len(held(db, partition, 2)) for partition in (0, 17, 19)] == [1, 1, 1]
    a.run("rollback to savepoint s")
    assert (a.locks(), setting(a, "wide")) == (2, "0,1")
    assert [len(held(db, partition, 2)) for partition in (0, 17, 19)] == [1, 0, 0]
    publish_to(a, range(14))
    assert (a.locks(), setting(a, "wide")) == (14, ",".join(map(str, range(14))))


@pytest.mark.parametrize(("count", "locks"), [(16, 16), (17, 1)])
def test_publish__to_many_partitions__takes_the_topics_lock_from_the_17th_on(db, count, locks):
    db.create_topic("wide", 20)
    a, reader = db.session().begin(), Reader(db, 0, topic="wide")
    publish_to(a, range(count))
    assert a.locks() == locks
    reader.settle_down()
    a.commit()
    assert reader.settle_down() == [0]


def test_publish__100_000_one_by_one_in_a_transaction__takes_a_handful_of_locks(db):
    a = db.session().begin()
    a.run(
        "select count(*) from generate_series(1, 100000) as g(n), coordinator.publish('t', '1', p_key => (g.n % 50)::text) p"
    )
    assert a.locks() == 2
    # One bucket's lock, for NOTIFY, and none for the buckets that it came through later.
    assert (
        db.observer.one(
            "select count(*) from pg_locks l where l.pid = %s and l.locktype = 'advisory' and l.mode = 'ExclusiveLock'",
            a.pid,
        )
        == 1
    )
    a.rollback()


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_publish__default_isolation_of_the_database__reads_and_writes_work(db, isolation):
    name = db.observer.one("select current_database()")
    db.observer.run(f"alter database {name} set default_transaction_isolation = '{isolation}'")
    a, b, reader = db.session(), db.session(), Reader(db)
    assert a.one("show transaction_isolation") == isolation
    a.run("begin")
    a.publish()
    b.publish()
    reader.settle_down()
    a.commit()
    assert reader.settle_down() == [1, 0]
    db.rotate()
    assert b.publish() == 2
    assert reader.settle_down() == [1, 0, 2]


def test_publish__statement_timeout_between_offset_and_insert__rolls_back_and_is_burnt(db):
    a, reader = db.session().stop_at("publish:insert"), Reader(db)
    a.run("set statement_timeout = '100ms'")
    with db.gate("publish:insert"), pytest.raises(psycopg.errors.QueryCanceled):
        a.publish()
    assert db.high() == 0
    reader.settle_down()
    assert (reader.received, reader.burnt) == ([], [0])
    assert a.publish() == 1
    assert reader.settle_down() == [1]


def test_publish__backend_terminated_while_open__is_burnt(db):
    a, reader = db.session().begin(), Reader(db)
    a.publish()
    reader.settle_down()
    db.observer.run("select pg_terminate_backend(%s)", a.pid)
    wait_until(lambda: not db.observer.one("select count(*) from pg_stat_activity where pid = %s", a.pid))
    reader.settle_down()
    assert (reader.received, reader.burnt) == ([], [0])


def test_publish_many__one_call__keeps_order_and_takes_every_offset_once(db):
    a = db.session()
    _, offsets, _ = a.one(
        "select p.partitions, p.offsets, p.message_ids from coordinator.publish_many('t', "
        "array(select convert_to(n::text, 'UTF8') from generate_series(0, 99) n), "
        "p_partitions => array(select n % 2 from generate_series(0, 99) n), p_wake => false) p"
    )
    assert offsets == [place // 2 for place in range(100)]
    reader = Reader(db, 1)
    reader.settle_down()
    assert reader.values == [str(number) for number in range(1, 100, 2)]


@pytest.mark.parametrize(
    ("arguments", "state"),
    [
        ("'none', array['1'::bytea]", "KG003"),
        ("'t', array[null::bytea]", "KG005"),
        ("'t', array['1'::bytea, null]", "KG005"),
        ("'t', array['1'::bytea], p_partitions => array[2]", "KG005"),
        ("'t', array['1'::bytea], p_partitions => array[-1]", "KG005"),
        ("'t', array['1'::bytea], p_keys => array['a', 'b']", "KG005"),
        ("'t', array['1'::bytea], p_keys => '[0:0]={a}'", "KG005"),
        ("'t', '[2:2]={1}'", "KG005"),
        ("'t', array['1'::bytea], p_headers => array[array['{}']]", "KG005"),
        ("'t', array['1'::bytea], p_dedup_keys => '[0:0]={a}'", "KG005"),
        ("'t', array[convert_to(repeat('x', 1048577), 'UTF8')]", "KG006"),
    ],
)
def test_publish_many__what_it_does_not_take__is_refused_before_an_offset_is_taken(db, arguments, state):
    assert fails(db.session(), f"select coordinator.publish_many({arguments})").sqlstate == state
    assert (db.high(0), db.high(1)) == (-1, -1)


def test_two_schemas__same_topic_number__are_not_taken_for_each_other(db):
    second_schema(db.dsn, "other")
    db.observer.run("select other.create_topic('t', 1)")
    a, b = db.session("other").begin(), db.session().begin()
    a.publish()
    assert held(db, 0) == []
    b.publish()
    assert len(held(db, 0)) == 1
    b.commit()
    assert Reader(db).settle_down() == [0]
    a.commit()


def setting(session, topic="t"):
    return session.one(
        "select coalesce(current_setting('pgcoord.locks_' || t.messages::oid, true), '') "
        "from coordinator.topics t where t.name = %s",
        topic,
    )


def publish_to(session, partitions, topic="wide"):
    wanted = list(partitions)
    session.run(
        "select coordinator.publish_many(%s, array_fill('1'::bytea, array[%s]), p_partitions => %s, p_wake => false)",
        topic,
        len(wanted),
        wanted,
    )
