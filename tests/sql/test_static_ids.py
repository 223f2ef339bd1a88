"""A process with a static id that comes back: what passes to it, what is kept for it, and for how long."""

from uuid import uuid4

import pytest


def register(db, static_id=None, grace_s=15, groups=("g",), lease_s=10):
    me = uuid4()
    db.observer.run(
        "select coordinator.register(%s, 'c', 'h', 1, %s, %s, %s, %s)", me, lease_s, static_id, grace_s, list(groups)
    )
    return me


def join(db, me, group="g", topics=("t",)):
    return db.observer.one("select j.group_id from coordinator.join_group(%s, %s, %s) j", me, group, list(topics))


def member(db, static_id=None, **options):
    me = register(db, static_id, **options)
    join(db, me)
    return me


def plan(db, group, owners):
    version = db.observer.one("select version from coordinator.groups where group_id = %s", group)
    assert db.observer.one(
        "select coordinator.store_plan(%s, %s, array[%s, %s], array[0, 1], %s)",
        group,
        version,
        db.topic_id,
        db.topic_id,
        list(owners),
    )


def claim(db, me, group, partition, hand_over_s=None):
    rows = db.observer.run(
        "select c.epoch, c.takeover, c.forced from coordinator.claim(%s, array[%s], array[%s], array[%s], %s) c",
        me,
        group,
        db.topic_id,
        partition,
        hand_over_s,
    )
    return rows[0] if rows else None


def release(db, me, group, partition, epoch):
    db.observer.run(
        "select coordinator.release(%s, array[%s], array[%s], array[%s], array[%s::bigint])",
        *(me, group, db.topic_id, partition, epoch),
    )


def state(db, group):
    return db.observer.run("select * from coordinator.group_state(array[%s])", group)[0]


def reap(db, observed_s=3600):
    return db.observer.one("select array(select r.member_id from coordinator.reap(%s) r)", observed_s)


@pytest.fixture
def two(db):
    """Two members, the first with a static id, each with one of the two partitions."""
    a, b = member(db, "one"), member(db)
    group = join(db, b)
    plan(db, group, [a, b])
    claim(db, a, group, 0)
    claim(db, b, group, 1)
    return a, b, group


def test_register__same_static_id__gets_its_claims_at_once_and_changes_no_plan(db, two):
    a, _, group = two
    before = state(db, group)
    again = register(db, "one")
    join(db, again)
    after = state(db, group)
    assert (after[1], after[2]) == (before[1], before[2])
    epoch, takeover, forced = claim(db, again, group, 0)
    assert (epoch, takeover, forced) == (2, True, False)
    assert db.observer.one("select state from coordinator.coordinators where coordinator = %s", a) == "dead"


def test_register__while_somebody_plans_with_the_old_one__that_plan_is_not_stored(db):
    """It would give the partitions to a dead one, for good: no version would say that a plan is missing."""
    a = member(db, "one")
    group = join(db, a)
    version = state(db, group)[1]
    again = register(db, "one")
    join(db, again)
    stored = "select coordinator.store_plan(%s, %s, array[%s, %s], array[0, 1], %s)"
    assert db.observer.one(stored, group, version, db.topic_id, db.topic_id, [a, a]) is False
    plan(db, group, [again, again])
    assert claim(db, again, group, 0)


def test_old_incarnation__replaced__is_told_that_it_must_not_come_back(db, two):
    a, _, group = two
    register(db, "one")
    for statement, arguments in (
        ("select coordinator.heartbeat(%s)", (a,)),
        ("select coordinator.join_group(%s, 'g', array['t'])", (a,)),
        ("select coordinator.hold_session(%s, pg_backend_pid())", (a,)),
        ("select coordinator.claim(%s, array[%s], array[%s], array[0])", (a, group, db.topic_id)),
    ):
        with pytest.raises(Exception, match="replaced") as caught:
            db.observer.run(statement, *arguments)
        assert caught.value.sqlstate == "KG012"


def test_register__reads_other_topics_now__the_group_is_planned_anew(db, two):
    *_, group = two
    db.create_topic("u")
    before = state(db, group)[1]
    again = register(db, "one")
    join(db, again, topics=["u"])
    found = state(db, group)
    assert found[1] == before + 1
    (mine,) = [one for one in found[3] if one["coordinator"] == str(again)]
    assert len(mine["topic_ids"]) == 1


def test_register__groups_that_it_is_no_member_of_any_more__are_left(db, two):
    _, _, group = two
    before = state(db, group)[1]
    register(db, "one", groups=["other"])
    found = state(db, group)
    assert found[1] == before + 1
    assert len(found[3]) == 1


def test_leave__static_id__its_place_is_kept_and_nobody_gets_its_partition(db, two):
    a, b, group = two
    before = state(db, group)
    release(db, a, group, 0, 1)
    db.observer.run("select coordinator.leave(%s, true)", a)
    found = state(db, group)
    assert (found[1], len(found[3])) == (before[1], 2)
    assert [claim_[4] for claim_ in found[4]] == [str(a), str(b)]
    assert reap(db) == []
    again = register(db, "one")
    join(db, again)
    assert state(db, group)[1] == before[1]
    assert claim(db, again, group, 0)[:2] == (2, False)
    # Nothing was charged, and no trace of the old one is left.
    assert db.observer.run("select 1 from coordinator.crashes") == []
    assert db.observer.one("select count(*) from coordinator.coordinators") == 2


def test_leave__nobody_comes_back_within_the_grace__it_is_out(db, two):
    a, _, group = two
    release(db, a, group, 0, 1)
    db.observer.run("select coordinator.leave(%s, true)", a)
    before = state(db, group)[1]
    db.observer.run("update coordinator.coordinators set lease_until = '-infinity' where state = 'away'")
    assert reap(db) == [a]
    found = state(db, group)
    assert (found[1], len(found[3])) == (before + 1, 1)


def test_leave__claims_are_not_all_released__keeps_no_place(db, two):
    """What it owns still is found by its lease; a place would hide that."""
    a, _, group = two
    db.observer.run("select coordinator.leave(%s, true)", a)
    assert len(state(db, group)[3]) == 1
    assert db.observer.one("select state from coordinator.coordinators where coordinator = %s", a) == "alive"


def test_register__a_claim_of_the_old_one_is_locked__it_is_replaced_as_soon_as_it_is_free(db, two):
    """A transactional ack that is about to commit holds it: it may, and then the rest is charged."""
    a, _, group = two
    ack = db.session().begin()
    ack.run("select 1 from coordinator.claims where partition = 0 for key share")
    again = register(db, "one")
    join(db, again)
    assert reap(db, 0) == []
    assert claim(db, again, group, 0) is None
    ack.commit()
    # The rule is not the lease: an observer that is new may apply it.
    assert reap(db, 0) == [a]
    assert claim(db, again, group, 0)[0] == 2


# ---- hand-over, and operators


def test_claim__meant_for_it_and_not_handed_over_in_time__is_taken_by_force_and_nothing_is_charged(db, two):
    a, b, group = two
    db.observer.run("update coordinator.groups set version = version + 1")
    plan(db, group, [b, b])
    assert claim(db, b, group, 0) is None
    assert claim(db, b, group, 0, 3600) is None
    assert claim(db, b, group, 0, 0) == (2, True, True)
    # Not meant for it: never, however long it waits.
    assert claim(db, a, group, 1, 0) is None
    assert db.observer.run("select 1 from coordinator.crashes") == []


def test_store_plan__what_stays__keeps_the_time_since_which_it_is_meant(db, two):
    a, b, group = two
    db.observer.run("update coordinator.targets set assigned_at = '2000-01-01'")
    db.observer.run("update coordinator.groups set version = version + 1")
    plan(db, group, [b, b])
    found = dict(db.observer.run("select partition, assigned_at < '2001-01-01' from coordinator.targets"))
    assert found == {0: False, 1: True}
    assert a


def test_hand_overs__says_who_has_what_others_wait_for(db, two):
    a, b, group = two
    assert db.observer.run("select 1 from coordinator.hand_overs") == []
    db.observer.run("update coordinator.groups set version = version + 1")
    plan(db, group, [b, b])
    rows = db.observer.run('select "group", topic, partition, member_id, target_member_id from coordinator.hand_overs')
    assert rows == [("g", "t", 0, a, b)]


def test_evict__living_member__its_claims_are_free_and_nothing_is_charged(db, two):
    a, b, group = two
    before = state(db, group)[1]
    db.observer.run("select coordinator.evict(%s)", a)
    assert state(db, group)[1] == before + 1
    assert claim(db, b, group, 0)[:2] == (2, True)
    assert db.observer.run("select 1 from coordinator.crashes") == []
    with pytest.raises(Exception, match="no living") as caught:
        db.observer.run("select coordinator.evict(%s)", a)
    assert caught.value.sqlstate == "KG003"


def test_drain__member__is_left_out_until_that_is_undone(db, two):
    a, b, group = two
    before = state(db, group)[1]
    db.observer.run("select coordinator.drain(%s)", a)
    found = state(db, group)
    assert found[1] == before + 1
    assert {one["coordinator"]: one["draining"] for one in found[3]} == {str(a): True, str(b): False}
    db.observer.run("select coordinator.heartbeat(%s)", a)
    assert db.observer.one("select state from coordinator.coordinators where coordinator = %s", a) == "draining"
    db.observer.run("select coordinator.drain(%s, false)", a)
    assert not any(one["draining"] for one in state(db, group)[3])
