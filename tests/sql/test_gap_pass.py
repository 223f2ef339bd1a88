"""The evidence about gaps: how publishers are named, and what voids it."""

import pytest
from support.reader import Reader
from support.schedules import fails
from support.sessions import Db

from coordinator.core.gaps import Gaps
from coordinator.db.schema import install
from coordinator.embedded import EmbeddedServer


def evidence(session, gaps="{[0,1)}"):
    """V and the holders of a pass over partition 0 of the first topic."""
    return session.run("select p.high, p.holders from coordinator.gap_pass('{1}', '{0}', array[%s]) p", gaps)[0]


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_gap_pass__at_another_isolation_level__is_refused(db, isolation):
    session = db.session().begin(isolation)
    assert fails(session, "select coordinator.gap_pass('{1}', '{0}', '{\"{[0,1)}\"}')").sqlstate == "KG007"


def test_gap_pass__publisher_is_prepared__keeps_its_name(db):
    a, b = db.session().begin(), db.session()
    a.publish()
    before = evidence(b)
    assert len(before[1]) == 1
    a.run("prepare transaction 'keeps_its_name'")
    try:
        assert evidence(b) == before
        # The backend goes on under another name.
        a.begin()
        a.publish()
        assert set(evidence(b)[1]) > set(before[1])
    finally:
        b.run("rollback prepared 'keeps_its_name'")
    assert set(evidence(b)[1]).isdisjoint(before[1])


def test_gap_pass__gap_beyond_v__is_not_weighed(db):
    gaps = Gaps()
    gaps.note([(0, 1)])
    high, holders = evidence(db.session())
    assert (high, holders) == (-1, [])
    assert gaps.on_pass([(0, 1)], high, holders, []) == []


def test_gap_pass__later_publishers__do_not_keep_an_old_gap(db):
    a, reader = db.session().begin(), Reader(db)
    a.publish()
    reader.poll()
    later = db.session().begin()
    later.publish()
    a.rollback()
    reader.settle_down()
    assert reader.burnt == [0]
    later.commit()
    assert reader.settle_down() == [1]


def test_gap_pass__several_segments__finds_stragglers_in_each(db):
    sessions = [db.session().begin() for _ in range(4)]
    reader = Reader(db)
    for session in sessions:
        session.publish()
        db.rotate()
        reader.settle_down()
    for session in reversed(sessions):
        session.commit()
    assert reader.settle_down() == [0, 1, 2, 3]


@pytest.fixture(scope="module")
def own_server(request):
    """A server that may be restarted."""
    with EmbeddedServer.start(major=request.config.getoption("--postgres")) as started:
        install(started.dsn)
        yield started


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_restart__transaction_was_prepared__is_still_waited_for(own_server, mode):
    topic, name = f"t_{mode}", f"restart_{mode}"
    with Db(own_server.dsn) as db:
        topic_id = db.create_topic(topic)
        a = db.session().begin()
        a.publish(topic=topic)
        call = "select p.high, p.holders from coordinator.gap_pass(array[%s::int], '{0}', '{\"{[0,1)}\"}') p"
        gaps = Gaps()
        gaps.note([(0, 1)])
        high, holders = db.observer.run(call, topic_id)[0]
        assert gaps.on_pass([(0, 1)], high, holders, []) == []
        a.run(f"prepare transaction '{name}'")
    own_server.restart(mode)
    with Db(own_server.dsn) as db:
        high, renamed = db.observer.run(call, topic_id)[0]
        assert renamed
        assert set(renamed).isdisjoint(holders)
        # Behind a pooler nobody has noticed the restart: the evidence goes on.
        assert gaps.on_pass([(0, 1)], high, renamed, []) == []
        # Where it was noticed, it is void.
        gaps.void()
        assert gaps.on_pass([(0, 1)], high, renamed, []) == []
        db.observer.run(f"commit prepared '{name}'")
        high, holders = db.observer.run(call, topic_id)[0]
        assert gaps.on_pass([(0, 1)], high, holders, [0]) == []
        assert not gaps


def test_restart__sequence_jumps_ahead_after_a_crash__offsets_are_burnt_and_none_is_used_twice(own_server):
    with Db(own_server.dsn) as db:
        db.create_topic("jump")
        for _ in range(3):
            db.session().publish(topic="jump")
    own_server.restart("immediate")
    with Db(own_server.dsn) as db:
        reader = Reader(db, topic="jump")
        reader.settle_down()
        next_offset = db.session().publish(topic="jump")
        assert next_offset > 3
        reader.settle_down()
        assert reader.received == [0, 1, 2, next_offset]
        assert reader.burnt == list(range(3, next_offset))
        assert reader.committed == next_offset + 1
