"""The functions of dead letters, called straight: pages, rights, races with replay and trim."""

import uuid

import psycopg
import pytest
from support.sessions import Db

GROUP = "billing"


@pytest.fixture
def db(dsn):
    """Topic `t` of two partitions, a group that stands at its start, and nobody in it."""
    with Db(dsn, partitions=2) as made:
        made.observer.run("select * from coordinator.join_group(null, %s, array['t'], 'earliest')", GROUP)
        yield made


def bury(
    db, offset, *, partition=0, error="no", reason="attempts", payload=b"1", key=None, died="2030-01-01T00:00:00Z"
):
    """Put a dead letter there, as bury does."""
    db.observer.run(
        "insert into coordinator.dead_letters select g.group_id, t.topic_id, %s, %s, %s, %s, coordinator.now_(), null, "
        "'{\"h\": 1}', %s, %s, %s, 5, 0, 0, jsonb_build_array(jsonb_build_object('error', %s::text, 'attempt', 5)), %s "
        "from coordinator.groups g, coordinator.topics t",
        partition, offset, key, uuid.uuid4(), payload, reason, error, error, died,
    )  # fmt: skip


def listed(session, **arguments):
    call = ", ".join([f"p_{name} => %s" for name in arguments])
    return session.run(
        f'select d.died_at, d.topic, d.partition, d."offset" from coordinator.select_dead_letters(%s, {call}) d'
        if call
        else 'select d.died_at, d.topic, d.partition, d."offset" from coordinator.select_dead_letters(%s) d',
        GROUP,
        *arguments.values(),
    )


def places(rows):
    return [(row[2], row[3]) for row in rows]


def count(db, table):
    return db.observer.one(f"select count(*) from coordinator.{table}")


def replay(session, offsets, partition=0, max_parked=10_000):
    return [
        row[0]
        for row in session.run(
            "select r.outcome from coordinator.replay(%s, 't', %s, %s, %s) r", GROUP, partition, offsets, max_parked
        )
    ]


# ---- select_dead_letters


def test_select__pages_of_any_size__give_each_once_in_order_of_death(db):
    for offset in range(20):
        # Three at a time have died in the same instant.
        bury(db, offset, partition=offset % 2, died=f"2030-01-01T00:00:{offset // 3:02}Z")
    whole = listed(db.observer)
    assert whole == sorted(whole)
    assert len(whole) == 20
    for size in (1, 2, 3, 7, 20):
        found, after = [], (None, None, None, None)
        while page := listed(
            db.observer,
            limit=size,
            **dict(zip(("after_died_at", "after_topic", "after_partition", "after_offset"), after, strict=True)),
        ):
            assert len(page) <= size
            found += page
            after = page[-1]
        assert found == whole


def test_select__max_bytes__ends_the_page_behind_the_payload_that_passes_it(db):
    for offset, size in enumerate((10, 10, 10, 1000, 10)):
        bury(db, offset, payload=b"x" * size)
    assert places(listed(db.observer, max_bytes=1)) == [(0, 0)]
    assert places(listed(db.observer, max_bytes=20)) == [(0, 0), (0, 1)]
    assert places(listed(db.observer, max_bytes=21)) == [(0, 0), (0, 1), (0, 2)]
    assert len(listed(db.observer, max_bytes=31)) == 4


def test_select__not_full__has_sizes_in_place_of_contents(db):
    bury(db, 0, payload=b"\x00\xff" * 500)
    row = db.observer.one(
        "select d.headers, d.payload, d.errors, d.payload_bytes, d.error "
        "from coordinator.select_dead_letters(%s, p_full => false) d",
        GROUP,
    )
    assert row == (None, None, None, 1000, "no")
    assert db.observer.one("select d.payload from coordinator.select_dead_letters(%s) d", GROUP) == b"\x00\xff" * 500


@pytest.mark.parametrize("pattern", ["(", "[a", "a{2,1}", "*", "\\"])
def test_select__pattern_that_is_none__raises_kg005(db, pattern):
    with pytest.raises(psycopg.Error) as raised:
        listed(db.observer, error=pattern)
    assert raised.value.sqlstate == "KG005"
    assert pattern in str(raised.value)


def test_select__unknown_group_or_topic__raises_kg003(db):
    for text in (
        "select * from coordinator.select_dead_letters('nobody')",
        "select * from coordinator.select_dead_letters('billing', p_topic => 'nothing')",
        "select * from coordinator.dead_letter_stats('nobody')",
        "select * from coordinator.dead_letter_totals('nobody')",
        "select coordinator.purge('nobody', 't', 0, '{0}')",
        "select coordinator.set_max_dead_letters('nobody', 1)",
        "select * from coordinator.replay('nobody', 't', 0, '{0}')",
        "select * from coordinator.replay('billing', 'nothing', 0, '{0}')",
        "select * from coordinator.replay('billing', 't', 7, '{0}')",
    ):
        with pytest.raises(psycopg.Error) as raised:
            db.observer.run(text)
        assert raised.value.sqlstate == "KG003", text


def test_select__page_of_many__comes_from_the_index_of_deaths(db):
    """A page must not read all that died before it, also when the function has been called often."""
    db.observer.run(
        "insert into coordinator.dead_letters select g.group_id, t.topic_id, 0, n, null, gen_random_uuid(), coordinator.now_(), "
        "null, null, ''::bytea, 'attempts', 'no', 5, 0, 0, '[]', '2030-01-01Z'::timestamptz + n * interval '1 second' "
        "from coordinator.groups g, coordinator.topics t, generate_series(0, 49999) n"
    )
    db.observer.run("analyze coordinator.dead_letters")
    session = db.session()
    for _ in range(8):
        session.begin()
        rows = listed(
            session,
            after_died_at="2030-01-01T10:00:00Z",
            after_topic="t",
            after_partition=0,
            after_offset=36000,
            limit=10,
        )
        read = session.one(
            "select s.seq_tup_read + s.idx_tup_fetch from pg_stat_xact_user_tables s where s.relname = 'dead_letters'"
        )
        session.commit()
        assert [row[3] for row in rows] == list(range(36001, 36011))
        assert read < 100


# ---- replay and purge


def test_replay__two_transactions__no_message_twice(db):
    """R17: who comes second skips what the first one holds, and finds nothing after its commit."""
    for offset in range(4):
        bury(db, offset)
    first, second = db.session().begin(), db.session()
    assert replay(first, [0, 1]) == ["replayed", "replayed"]
    assert replay(second, [0, 1, 2]) == ["gone", "gone", "replayed"]
    first.commit()
    assert replay(second, [0, 1, 2, 3]) == ["gone", "gone", "gone", "replayed"]
    assert (count(db, "dead_letters"), count(db, "retries")) == (0, 4)


def test_replay__first_rolls_back__leaves_it_to_the_next(db):
    bury(db, 0)
    first = db.session().begin()
    assert replay(first, [0]) == ["replayed"]
    first.rollback()
    assert replay(db.session(), [0]) == ["replayed"]


def test_replay__claim_is_being_taken_over__waits_for_it(db):
    """The claim's row comes before the dead letters: what is written is seen by the new owner."""
    bury(db, 0)
    taker = db.session().begin()
    taker.run("select 1 from coordinator.claims c where c.partition = 0 for update")
    waiting = db.session().start("select r.outcome from coordinator.replay('billing', 't', 0, '{0}') r")
    with pytest.raises(TimeoutError):
        waiting.result(0.3)
    taker.commit()
    assert waiting.result() == [("replayed",)]


def test_replay__owner_settles_or_a_handler_acks__does_not_wait(db):
    """KEY SHARE passes the owner's NO KEY UPDATE and a transactional ack's KEY SHARE."""
    bury(db, 0)
    owner, handler = db.session().begin(), db.session().begin()
    owner.run("select 1 from coordinator.claims c for no key update")
    handler.run("select 1 from coordinator.claims c for key share")
    assert replay(db.session(), [0]) == ["replayed"]


def test_replay__max_parked_reached__is_full(db):
    for offset in range(3):
        bury(db, offset)
        bury(db, offset, partition=1)
    assert replay(db.observer, [0, 1, 2], max_parked=2) == ["replayed", "replayed", "full"]
    assert replay(db.observer, [2], max_parked=2) == ["full"]
    assert replay(db.observer, [0], partition=1, max_parked=2) == ["replayed"]


def test_replay__payload_key_and_history__go_along(db):
    bury(db, 0, payload=b"\x00\xff", key="ada")
    replay(db.observer, [0])
    row = db.observer.one(
        "select r.payload, r.key, r.headers, r.fails, r.crashes, r.replays, r.errors, r.dispatched_epoch, r.behind_key "
        "from coordinator.retries r"
    )
    assert row == (b"\x00\xff", "ada", {"h": 1}, 0, 0, 1, [{"error": "no", "attempt": 5}], None, False)


def test_replay__nothing_there__wakes_nobody(db):
    listener = db.session()
    channel = db.observer.one("select t.messages::text from coordinator.topics t")
    listener.connection.execute(psycopg.sql.SQL("listen {}").format(psycopg.sql.Identifier(channel)))
    assert replay(db.observer, [7]) == ["gone"]
    bury(db, 0)
    assert list(listener.connection.notifies(timeout=0.2)) == []
    replay(db.observer, [0])
    assert [notice.channel for notice in listener.connection.notifies(timeout=5, stop_after=1)] == [channel]


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_replay__other_isolation__raises_kg007(db, isolation):
    bury(db, 0)
    session = db.session().begin(isolation)
    with pytest.raises(psycopg.Error) as raised:
        replay(session, [0])
    assert raised.value.sqlstate == "KG007"


def test_purge__held_by_a_replay__skips_it(db):
    bury(db, 0)
    bury(db, 1)
    other = db.session().begin()
    replay(other, [0])
    assert db.observer.one("select coordinator.purge('billing', 't', 0, '{0,1,2}')") == 1
    other.rollback()
    assert places(listed(db.observer)) == [(0, 0)]


# ---- a message that dies twice


def test_bury__dead_letter_is_there__one_row_whose_history_grows(db):
    """R10: a message that was sought back dies again while its first dead letter stands."""
    offset = db.session().publish("again")
    group, topic = db.observer.one("select g.group_id, t.topic_id from coordinator.groups g, coordinator.topics t")
    for n in (1, 2, 3):
        db.observer.run(
            "select coordinator.bury(%s, %s, 0, 1, %s, jsonb_build_object('reason', 'attempts', 'attempts', %s::int, 'crashes', 0, "
            "'error', jsonb_build_object('error', %s::text, 'attempt', %s::int)), coordinator.now_())",
            group, topic, offset, n, f"death {n}", n,
        )  # fmt: skip
    row = db.observer.one("select d.error, d.attempts, d.errors from coordinator.dead_letters d")
    assert row[:2] == ("death 3", 3)
    assert [entry["error"] for entry in row[2]] == ["death 1", "death 2", "death 3"]


def test_bury__no_such_message__raises_kg003(db):
    group, topic = db.observer.one("select g.group_id, t.topic_id from coordinator.groups g, coordinator.topics t")
    with pytest.raises(psycopg.Error) as raised:
        db.observer.run(
            'select coordinator.bury(%s, %s, 0, 1, 4711, \'{"reason": "attempts"}\', coordinator.now_())', group, topic
        )
    assert raised.value.sqlstate == "KG003"


def test_append_error__many__keeps_the_first_and_the_last_four(db):
    errors = db.observer.one(
        "with recursive r(n, e) as (select 0, '[]'::jsonb union all "
        "select n + 1, coordinator.append_error(e, to_jsonb(n)) from r where n < 9) select e from r where n = 9"
    )
    assert errors == [0, 5, 6, 7, 8]


# ---- the bound


def trim(session, limit=1000):
    return session.one("select coordinator.trim_dead_letters(%s)", limit)


def totals(db):
    return db.observer.one(
        "select d.dead_letters, d.max_dead_letters, d.dropped from coordinator.dead_letter_totals('billing') d"
    )


def test_trim__over_the_bound__drops_what_died_first_and_counts(db):
    for offset in range(6):
        bury(db, offset, died=f"2030-01-0{6 - offset}T00:00:00Z")
    assert trim(db.observer) == 0
    assert db.observer.one("select coordinator.set_max_dead_letters('billing', 4)") == 100_000
    assert trim(db.observer, limit=1) == 1
    assert totals(db) == (5, 4, 1)
    assert trim(db.observer) == 1
    assert totals(db) == (4, 4, 2)
    assert sorted(places(listed(db.observer))) == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert trim(db.observer) == 0


def test_trim__two_at_once__drop_the_surplus_once(db):
    for offset in range(6):
        bury(db, offset)
    db.observer.run("select coordinator.set_max_dead_letters('billing', 4)")
    first, second = db.session().begin(), db.session()
    assert trim(first) == 2
    assert trim(second) == 0
    first.commit()
    assert trim(second) == 0
    assert totals(db) == (4, 4, 2)


def test_trim__some_are_being_replayed__drops_others_within_the_bound(db):
    for offset in range(3):
        bury(db, offset)
    db.observer.run("select coordinator.set_max_dead_letters('billing', 2)")
    other = db.session().begin()
    replay(other, [0])
    assert trim(db.observer) == 1
    other.rollback()
    assert places(listed(db.observer)) == [(0, 0), (0, 2)]


@pytest.mark.parametrize("bound", [-1, None])
def test_set_max_dead_letters__no_number__raises_kg005(db, bound):
    with pytest.raises(psycopg.Error) as raised:
        db.observer.run("select coordinator.set_max_dead_letters('billing', %s::int)", bound)
    assert raised.value.sqlstate == "KG005"


# ---- counts and rights


def test_stats__causes__by_topic_reason_and_first_line(db):
    for offset in range(4):
        bury(db, offset, error=f"timeout\nafter {offset} s", died=f"2030-01-0{offset + 1}T00:00:00Z")
    bury(db, 4, reason="crash", error=None)
    rows = db.observer.run(
        "select d.topic, d.reason, d.error, d.dead_letters, d.newest - d.oldest from coordinator.dead_letter_stats('billing') d"
    )
    assert [row[:4] for row in rows] == [("t", "attempts", "timeout", 4), ("t", "crash", None, 1)]
    assert rows[0][4].days == 3


def test_counts__two_partitions__are_listed(db):
    bury(db, 0)
    bury(db, 1)
    bury(db, 0, partition=1)
    rows = db.observer.run(
        'select d."group", d.topic, d.partition, d.dead_letters from coordinator.dead_letter_counts d order by 3'
    )
    assert rows == [("billing", "t", 0, 2), ("billing", "t", 1, 1)]


def test_functions__role_with_usage_alone__may_call_them(db):
    bury(db, 0)
    bury(db, 1)
    db.observer.run("drop role if exists dead_letter_reader")
    db.observer.run("create role dead_letter_reader")
    try:
        db.observer.run("grant usage on schema coordinator to dead_letter_reader")
        session = db.session()
        session.run("set role dead_letter_reader")
        assert len(listed(session)) == 2
        assert session.one("select d.dead_letters from coordinator.dead_letter_totals('billing') d") == 2
        assert replay(session, [0]) == ["replayed"]
        assert session.one("select coordinator.purge('billing', 't', 0, '{1}')") == 1
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.run("select * from coordinator.dead_letters")
        session.close()
    finally:
        db.observer.run("drop owned by dead_letter_reader")
        db.observer.run("drop role dead_letter_reader")
