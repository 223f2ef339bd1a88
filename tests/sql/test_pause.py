"""pause, resume, hold: what they mark, for how long, and that they wait for no handler."""

import pytest
from support.group import GROUP, TestedGroup, seek_call
from support.sessions import wait_until


@pytest.fixture
def group(db):
    return TestedGroup(db)


def paused(group):
    return {
        partition
        for (partition,) in group.db.observer.run("select o.partition from coordinator.offsets o where o.paused")
    }


def test_pause__whole_group_topic_or_partitions__is_marked_and_told_once(group):
    run = group.db.observer.run
    assert run("select * from coordinator.pause(%s, 't', array[1])", GROUP) == [("t", 1, True)]
    assert run("select * from coordinator.pause(%s)", GROUP) == [("t", 0, True), ("t", 1, False)]
    assert paused(group) == {0, 1}
    (state,) = run("select s.claims from coordinator.group_state(array[%s]) s", group.id)
    assert [claim[5] for claim in state[0]] == [True, True]
    assert run("select * from coordinator.resume(%s, 't', array[0])", GROUP) == [("t", 0, True)]
    assert paused(group) == {1}
    assert run("select * from coordinator.resume(%s, 't')", GROUP) == [("t", 0, False), ("t", 1, True)]
    assert paused(group) == set()
    assert [action for (action,) in run("select a.action from coordinator.audit_list a order by a.audit_id")] == [
        "pause", "pause", "resume", "resume",
    ]  # fmt: skip


def test_pause__outlasts_the_owner__and_the_claim_of_another(group):
    member = group.member()
    group.db.observer.run("select * from coordinator.pause(%s, 't', array[0], 'stop')", GROUP)
    member.claim()
    assert paused(group) == {0}
    assert group.db.observer.one("select p.reason, p.kind from coordinator.pause_list p") == ("stop", "operator")


@pytest.mark.parametrize("all_of_it", [True, False])
def test_pause__all_that_the_group_reads__holds_for_what_it_begins_to_read(group, all_of_it):
    run = group.db.observer.run
    run("select coordinator.create_topic('later', 2)")
    run("select * from coordinator.pause(%s, 't', %s)", GROUP, None if all_of_it else [0])
    run("select * from coordinator.join_group(null, %s, array['later'])", GROUP)
    found = run("select p.topic, p.partition, p.reason from coordinator.pause_list p order by 1, 2")
    later = [("later", number, "as all else that the group reads") for number in (0, 1)]
    assert found == [*(later if all_of_it else []), ("t", 0, None), *([("t", 1, None)] if all_of_it else [])]


def test_pause__while_the_group_begins_to_read_a_topic__holds_for_it(group):
    """Mutant: a pause that does not wait for who joins."""
    group.db.observer.run("select coordinator.create_topic('later', 1)")
    joining = group.db.session().begin()
    joining.run("select * from coordinator.join_group(null, %s, array['later'])", GROUP)
    session = group.db.session()
    pausing = session.start("select p.topic from coordinator.pause(%s) p", GROUP)
    wait_until(lambda: pausing.done or waiting(group, session))
    joining.commit()
    assert pausing.result() == [("later",), ("t",), ("t",)]


def test_pause__under_a_transactional_ack__waits_for_nobody(group):
    member = group.member()
    member.exchange(want=1)
    handler = group.db.session().begin()
    handler.run(*member.ack_call(0))
    group.db.observer.run("set lock_timeout = '1s'")
    group.db.observer.run("select * from coordinator.pause(%s)", GROUP)
    group.db.observer.run("select * from coordinator.resume(%s)", GROUP)
    # What runs may finish: the ack of a paused claim is an ack.
    group.db.observer.run("select * from coordinator.pause(%s)", GROUP)
    handler.commit()
    assert member.exchange(settled="{[0,1)}") == "ok"


def test_hold__ends_with_its_seek__and_an_operators_pause_stays(group):
    run = group.db.observer.run
    run("select * from coordinator.pause(%s, 't', array[0])", GROUP)
    assert run("select coordinator.hold(%s)", GROUP) == [(2,)]
    run(*seek_call("latest"))
    run(*seek_call("latest", partition=1))
    assert paused(group) == {0}


def test_hold__of_a_client_that_has_died__ends_by_itself(group):
    group.db.observer.run("select coordinator.hold(%s, 't', array[0], 0)", GROUP)
    assert paused(group) == set()
    group.db.observer.run("select coordinator.hold(%s, 't', array[0], 60)", GROUP)
    assert paused(group) == {0}
    group.db.observer.run("select coordinator.let_go(%s)", GROUP)
    assert paused(group) == set()


def test_pause__while_another_operators_resume_is_not_committed__holds_after_it(group):
    """Who was told that it is paused must not find it going on because of what began before. Mutant: a look before the insert."""
    group.db.observer.run("select * from coordinator.pause(%s)", GROUP)
    resuming = group.db.session().begin()
    resuming.run("select * from coordinator.resume(%s)", GROUP)
    session = group.db.session()
    pausing = session.start("select p.changed from coordinator.pause(%s) p", GROUP)
    wait_until(lambda: pausing.done or waiting(group, session))
    assert not pausing.done
    resuming.commit()
    assert pausing.result() == [(True,), (True,)]
    assert paused(group) == {0, 1}


def test_pause__while_another_operators_pause_is_rolled_back__holds(group):
    first = group.db.session().begin()
    first.run("select * from coordinator.pause(%s)", GROUP)
    session = group.db.session()
    pausing = session.start("select p.changed from coordinator.pause(%s) p", GROUP)
    wait_until(lambda: pausing.done or waiting(group, session))
    first.rollback()
    assert pausing.result() == [(True,), (True,)]
    assert paused(group) == {0, 1}


def waiting(group, session):
    return group.db.observer.one("select count(*) from pg_locks l where not l.granted and l.pid = %s", session.pid)
