"""Where a group starts: earliest, latest, and what latest does not get."""

from uuid import uuid4

from support.reader import Reader
from support.sessions import wait_until


def test_join_group__latest_on_an_empty_topic__starts_at_0(db):
    reader = Reader(db, start="latest")
    assert reader.committed == 0
    db.session().publish()
    assert reader.settle_down() == [0]


def test_join_group__latest__starts_behind_what_was_handed_out_and_skips_open_publishers(db):
    a, b = db.session().begin(), db.session()
    b.publish()
    a.publish()
    reader, all_of_it = Reader(db, start="latest"), Reader(db, start="earliest")
    assert reader.committed == 2
    b.publish()
    a.commit()
    # What an open publisher commits below the start is not its; what it publishes above is.
    assert reader.settle_down() == [2]
    assert all_of_it.settle_down() == [0, 1, 2]


def test_join_group__latest__publisher_goes_on_after_the_join__gets_the_later_ones(db):
    a = db.session().begin()
    a.publish()
    reader = Reader(db, start="latest")
    a.publish()
    a.commit()
    assert reader.settle_down() == [1]


def test_join_group__second_member_with_another_start__moves_nothing(db):
    db.session().publish()
    first = Reader(db, 0, "g")
    second = Reader(db, 1, "g", start="latest")
    assert second.committed == 0
    assert first.settle_down() == [0]


def test_evict__while_the_process_joins__leaves_no_member_behind(db):
    """Plans would give partitions to a dead process, and nobody would take them. Mutant: a plain UPDATE, which passes KEY SHARE."""
    me = uuid4()
    joiner, operator = db.session(), db.session()
    joiner.run("select coordinator.register(%s, 'test', 'here', 1, 60)", me)
    joiner.begin()
    joiner.run("select coordinator.join_group(%s, 'g', '{t}')", me)
    evicted = operator.start("select coordinator.evict(%s)", me)
    wait_until(lambda: evicted.done or operator.pid in waiting(db))
    joiner.commit()
    evicted.result()
    assert db.observer.one("select count(*) from coordinator.members") == 0


def waiting(db):
    return [pid for (pid,) in db.observer.run("select pid from pg_stat_activity where wait_event_type = 'Lock'")]
