"""Coming back to a group after a death that was none: what is gone is told, and nothing is made."""

from uuid import uuid4

import pytest


@pytest.fixture
def joined(db):
    """Join group `g` on topic `t` and be evicted; the new id is registered. Returns (group_id, topic_id, new id)."""
    old, new = uuid4(), uuid4()
    db.observer.run("select coordinator.register(%s, 'test', 'here', 1, 60)", old)
    group_id, topics = db.observer.one("select j.group_id, j.topics from coordinator.join_group(%s, 'g', '{t}') j", old)
    db.observer.run("select coordinator.evict(%s)", old)
    db.observer.run("select coordinator.register(%s, 'test', 'here', 1, 60)", new)
    return group_id, topics[0]["topic_id"], new


def rejoin(db, joined):
    group_id, topic_id, me = joined
    return db.observer.one(
        "select r.group_id, r.topics from coordinator.rejoin_group(%s, 'g', %s, '{t}', array[%s]) r",
        me,
        group_id,
        topic_id,
    )


def members(db):
    return db.observer.run("select m.coordinator, m.topic_ids from coordinator.members m")


def test_rejoin_group__everything_is_there__a_member_again_with_a_plan_due(db, joined):
    version = db.observer.one("select g.version from coordinator.groups g")
    group_id, topics = rejoin(db, joined)
    assert (group_id, [topic["name"] for topic in topics]) == (joined[0], ["t"])
    assert members(db) == [(joined[2], [joined[1]])]
    assert db.observer.one("select g.version from coordinator.groups g") == version + 1


def test_rejoin_group__deleted__tells_and_makes_nothing(db, joined):
    db.observer.run("select coordinator.delete_group('g')")
    assert rejoin(db, joined) == (None, None)
    assert db.observer.one("select count(*) from coordinator.groups") == 0


def test_rejoin_group__deleted_and_made_anew_under_its_name__is_another_one(db, joined):
    db.observer.run("select coordinator.delete_group('g')")
    db.observer.run("select coordinator.join_group(null, 'g', '{t}')")
    assert rejoin(db, joined) == (None, None)
    assert members(db) == []


def test_rejoin_group__topic_made_anew_under_its_name__is_missing(db, joined):
    db.observer.run("select coordinator.delete_topic('t', true)")
    db.observer.run("select coordinator.create_topic('t', 1)")
    assert rejoin(db, joined) == (joined[0], None)
    assert members(db) == []
