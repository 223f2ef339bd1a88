"""Rotation: bounds are exact where they are known, and nothing is read less where they are not."""

import psycopg
import pytest
from support.reader import Reader
from support.schedules import fails


def bounds(db):
    return db.observer.run("select s.segment, s.floors, s.ceilings from coordinator.segments s order by s.segment")


def segments_of(db):
    return db.observer.run(
        'select m.segment, min(m."offset"), max(m."offset") from coordinator.topic_1 m where m.partition = 0 group by 1 order by 1'
    )


def test_rotate__between_messages__floors_and_ceilings_are_exact(db):
    session = db.session()
    for _ in range(3):
        session.publish()
    assert db.rotate() == 2
    for _ in range(2):
        session.publish()
    assert db.rotate() == 3
    session.publish()
    assert bounds(db) == [(1, [-1, -1], [2, -1]), (2, [2, -1], [4, -1]), (3, [4, -1], None)]
    assert segments_of(db) == [(1, 0, 2), (2, 3, 4), (3, 5, 5)]


def test_rotate__publisher_between_nextval_and_insert__burns_its_offset_and_takes_another(db):
    a = db.session().stop_at("publish:again")
    with db.gate("publish:again") as gate:
        publishing = a.start_publish()
        gate.arrived()
        assert db.high() == 0
        db.rotate()
    assert publishing.result() == [(1,)]
    assert segments_of(db) == [(2, 1, 1)]
    reader = Reader(db)
    reader.settle_down()
    assert (reader.received, reader.burnt, reader.committed) == ([1], [0], 2)


def test_rotate__publisher_past_the_second_look__stays_in_the_old_segment_within_its_ceiling(db):
    a = db.session().stop_at("publish:insert")
    with db.gate("publish:insert") as gate:
        publishing = a.start_publish()
        gate.arrived()
        db.rotate()
    assert publishing.result() == [(0,)]
    assert segments_of(db) == [(1, 0, 0)]
    assert bounds(db) == [(1, [-1, -1], [0, -1]), (2, [0, -1], None)]
    assert Reader(db).settle_down() == [0]


def test_open_segment__crashed_between_setval_and_commit__bounds_stay_unknown_and_everything_is_read(db):
    a, b = db.session(), db.session()
    a.publish()
    segment = a.one("select coordinator.add_segment('t')")
    a.begin()
    a.run("select coordinator.open_segment('t', %s)", segment)
    b.publish()
    a.rollback()
    b.publish()
    assert bounds(db) == [(1, [-1, -1], None), (2, None, None)]
    assert segments_of(db) == [(1, 0, 0), (2, 1, 2)]
    assert Reader(db).settle_down() == [0, 1, 2]
    # The next call finds it open, and writes the bound that it knows.
    assert a.one("select coordinator.open_segment('t', %s)", segment) is False
    assert bounds(db) == [(1, [-1, -1], [2, -1]), (2, None, None)]
    assert db.rotate() == 3
    b.publish()
    assert bounds(db) == [(1, [-1, -1], [2, -1]), (2, None, [2, -1]), (3, [2, -1], None)]
    assert Reader(db).settle_down() == [0, 1, 2, 3]


def test_open_segment__again__says_that_it_was_open_and_moves_no_bound(db):
    db.session().publish()
    db.rotate()
    before = bounds(db)
    assert db.observer.one("select coordinator.open_segment('t', 2)") is False
    assert db.observer.one("select coordinator.open_segment('t', 1)") is False
    assert bounds(db) == before


def test_add_segment__made_and_not_opened__is_found_again(db):
    assert db.observer.one("select coordinator.add_segment('t')") == 2
    assert db.observer.one("select coordinator.add_segment('t')") == 2
    assert db.session().publish() == 0
    assert segments_of(db) == [(1, 0, 0)]


def test_open_segment__no_such_segment__is_refused(db):
    with pytest.raises(psycopg.Error) as refused:
        db.observer.run("select coordinator.open_segment('t', 7)")
    assert refused.value.sqlstate == "KG003"


def test_rotate__publishers_with_open_transactions__neither_waits_for_the_other(db):
    a, b, rotator = db.session().begin(), db.session(), db.session()
    a.publish()
    rotator.run("set lock_timeout = '1s'")
    segment = rotator.one("select coordinator.add_segment('t')")
    rotator.begin()
    rotator.run("select coordinator.open_segment('t', %s)", segment)
    b.run("set lock_timeout = '1s'")
    assert b.publish() == 1
    a.publish()
    a.commit()
    rotator.commit()
    assert Reader(db).settle_down() == [0, 1, 2]


def test_open_segment__in_the_transaction_that_made_the_table__is_refused(db):
    # Publishers would see the segment at once, and its table not before the commit.
    session = db.session().begin()
    segment = session.one("select coordinator.add_segment('t')")
    assert fails(session, "select coordinator.open_segment('t', %s)", segment).sqlstate == "KG005"
    session.rollback()
    assert db.session().publish() == 0


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_publish__snapshot_older_than_the_rotation__goes_into_the_new_segment(db, isolation):
    a, b = db.session().begin(isolation), db.session()
    a.run("select count(*) from coordinator.topic_1")
    b.publish()
    db.rotate()
    b.publish()
    assert a.publish() == 2
    a.commit()
    assert segments_of(db) == [(1, 0, 0), (2, 1, 2)]
    assert Reader(db).settle_down() == [0, 1, 2]


def test_straggler__in_a_segment_older_than_the_readers_position__is_found(db):
    a, b = db.session().begin(), db.session()
    a.publish()
    b.publish()
    reader = Reader(db)
    for _ in range(3):
        db.rotate()
        b.publish()
        reader.settle_down()
    assert reader.received == [1, 2, 3, 4]
    a.commit()
    assert reader.settle_down() == [1, 2, 3, 4, 0]
