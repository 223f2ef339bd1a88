"""seek and skip, called straight: where they lead, what becomes of what was parked or dead, and each race."""

import threading
import time

import psycopg
import pytest
from support.group import GROUP, Member, TestedGroup, seek_call, skip_call
from support.sessions import wait_until


@pytest.fixture
def group(db):
    return TestedGroup(db)


def raises(state, call, *arguments):
    with pytest.raises(psycopg.Error) as raised:
        call(*arguments)
    assert raised.value.sqlstate == state, raised.value
    return str(raised.value)


def waits(db, session):
    """Whether a session waits for a lock."""
    return db.observer.one(
        "select exists (select from pg_stat_activity a where a.pid = %s and a.wait_event_type = 'Lock')", session.pid
    )


def consume(member, count):
    """Read and ack the first messages."""
    assert member.exchange(want=count) == "ok"
    assert member.exchange(settled=f"{{[0,{count})}}") == "ok"


# ---- targets


@pytest.mark.parametrize(
    ("to", "offset", "wanted", "target"),
    [
        ("earliest", None, 0, 0),
        ("latest", None, 10, 10),
        ("offset", 3, 3, 3),
        ("offset", 99, 99, 10),
        ("offset", -5, -5, 0),
        ("shift", -2, 2, 2),
        ("shift", 3, 7, 7),
        ("shift", -9, -5, 0),
        ("shift", 90, 94, 10),
    ],
)
def test_seek__target__is_clamped_to_the_log(group, to, offset, wanted, target):
    consume(group.member(), 4)
    row = group.db.observer.one(*seek_call(to, offset))
    assert row[:3] == (4, wanted, target)
    assert group.newest()[1:] == (target, target, "{}")


def test_seek__to_a_time__goes_to_the_first_message_of_it_or_later(group):
    at = group.db.observer.one("select m.published_at from coordinator.peek('t', 0, 6, 1) m")
    assert group.db.observer.one(*seek_call("time", time=at))[2] == 6
    assert group.db.observer.one(*seek_call("time", time="2999-01-01T00:00:00Z"))[2] == 10


def test_seek__without_execute__changes_nothing(group):
    member = group.member()
    consume(member, 4)
    before = group.newest(), group.claim_row()
    assert group.db.observer.one(*seek_call("earliest", force=False, execute=False)) == (4, 0, 0, 0, 0, 0, 1, None)
    assert (group.newest(), group.claim_row()) == before
    assert member.exchange(settled="{}", want=2) == "ok"
    assert group.db.observer.run("select * from coordinator.audit_list") == []


def test_seek__live_members__is_refused_unless_forced(group):
    member = group.member()
    consume(member, 4)
    assert "1 live members" in raises("KG004", group.db.observer.one, *seek_call("earliest", force=False))
    assert member.exchange(want=2) == "ok"
    assert group.db.observer.one(*seek_call("earliest"))[6] == 1
    # Its lease over, it does not count.
    group.db.observer.run("update coordinator.coordinators c set lease_until = coordinator.now_() - interval '1 s'")
    assert group.db.observer.one(*seek_call("latest", force=False))[6] == 0


@pytest.mark.parametrize(
    ("state", "call"),
    [
        ("KG003", ("select * from coordinator.seek('nobody', 't', 0, 'earliest')",)),
        ("KG003", ("select * from coordinator.seek('billing', 'nothing', 0, 'earliest')",)),
        ("KG003", ("select * from coordinator.seek('billing', 't', 9, 'earliest')",)),
        (
            "KG003",
            ("select * from coordinator.seek('billing', 't', 9, 'earliest', p_execute => true, p_force => true)",),
        ),
        ("KG005", ("select * from coordinator.seek('billing', 't', 0, 'somewhere')",)),
        ("KG005", ("select * from coordinator.seek('billing', 't', 0, 'offset')",)),
        ("KG005", ("select * from coordinator.seek('billing', 't', 0, 'earliest', 3)",)),
        ("KG005", ("select * from coordinator.seek('billing', 't', 0, null)",)),
        ("22003", ("select * from coordinator.seek('billing', 't', 0, 'shift', 9223372036854775807)",)),
        ("KG003", ("select * from coordinator.skip('nobody', 't', 0, 1)",)),
        ("KG003", ("select * from coordinator.skip('billing', 't', 0, 99)",)),
        ("KG003", ("select * from coordinator.pause('nobody')",)),
        ("KG003", ("select * from coordinator.pause('billing', 'nothing')",)),
        ("KG003", ("select * from coordinator.pause('billing', 't', array[9])",)),
        ("KG005", ("select * from coordinator.pause('billing', null, array[0])",)),
        ("KG005", ("select coordinator.hold('billing', p_hold_s => 'NaN')",)),
    ],
)
def test_wrong_arguments__are_refused(group, state, call):
    consume(group.member(), 1)
    raises(state, group.db.observer.run, *call)


def test_seek__at_another_isolation_level__is_refused(group):
    session = group.db.session().begin("repeatable read")
    raises("KG007", session.run, *seek_call("earliest"))


def test_seek__writes_who_when_and_why(group):
    consume(group.member(), 4)
    group.db.observer.one(*seek_call("earliest", reason="the bank has asked"))
    action, name, topic, partition, lo, hi, epoch, reason, actor = group.db.observer.one(
        'select a.action, a."group", a.topic, a.partition, a.from_offset, a.to_offset, a.epoch, a.reason, a.actor = session_user '
        "from coordinator.audit_list a"
    )
    assert (action, name, topic, partition, lo, hi) == ("seek", GROUP, "t", 0, 4, 0)
    assert (epoch, reason, actor) == (group.claim_row()[1], "the bank has asked", True)


# ---- what was parked, dead or skipped (R9, R16)


def test_seek_backwards__parked_at_or_above_the_target__comes_again_and_below_it_stays(group):
    member = group.member()
    member.exchange(want=10)
    member.exchange(settled="{[0,10)}")
    for offset in (1, 5, 6):
        group.db.observer.run(
            'insert into coordinator.retries (group_id, topic_id, partition, "offset", fails, crashes, next_at, created_at, errors) '
            "values (%s, %s, 0, %s, 2, 0, now(), now(), jsonb_build_array(jsonb_build_object('error', 'x')))",
            group.id, group.db.topic_id, offset,
        )  # fmt: skip
    row = group.db.observer.one(*seek_call("offset", 5))
    assert row[3:5] == (0, 2)
    assert group.offsets("retries") == [1]
    assert group.newest()[1:] == (5, 5, "{}")
    # How they had failed is not lost when they fail for good.
    member.claim()
    member.exchange(want=10)
    member.bury(5)
    assert group.db.observer.one('select d.errors from coordinator.dead_letters d where d."offset" = 5') == [
        {"error": "x"}, {"error": "d5"},
    ]  # fmt: skip


def test_seek_forwards__what_it_passes__is_recorded_as_skipped_one_by_one_where_it_was_parked(group):
    member = group.member()
    member.exchange(want=8)
    member.exchange(settled="{[0,2),[4,5)}")
    member.park(3, key="k")
    assert group.newest()[1:] == (2, 8, "{[3,5)}")
    row = group.db.observer.one(*seek_call("offset", 7))
    # 2, 5 and 6 open, 3 parked.
    assert row[:6] == (2, 7, 7, 4, 1, 0)
    assert group.skips() == [("{[2,3),[5,7)}", "seek", "test"), ("{[3,4)}", "seek", "test")]
    assert group.db.observer.one(
        "select s.key, s.errors -> 0 ->> 'error' from coordinator.skips s where s.key is not null"
    ) == ("k", "e3")
    assert group.offsets("retries") == []
    # Backwards again: they are open again, and not skipped.
    group.db.observer.one(*seek_call("offset", 3))
    assert group.skips() == [("{[2,3)}", "seek", "test")]


def test_seek_backwards__parked_message_that_the_log_has_dropped__is_passed(group):
    """Its segment went between the look at the log's start and the look for the message; it was to be a dead letter, of nothing."""
    member = group.member()
    member.exchange(want=10)
    member.park(6, key="k")
    group.db.observer.run("update coordinator.topics set first_segment = 2")
    group.db.observer.run('delete from coordinator.topic_1_s1 where "offset" = 6')
    group.db.observer.one(*seek_call("offset", 5))
    assert group.offsets("retries") == group.offsets("dead_letters") == []
    assert group.skips() == [("{[0,5)}", "seek", "test"), ("{[6,7)}", "seek", "test")]


def test_seek__parked_below_both_ends__stays(group):
    member = group.member()
    member.exchange(want=5)
    member.exchange(settled="{[0,1),[2,5)}")
    member.park(1)
    assert group.newest()[1] == 5
    group.db.observer.one(*seek_call("latest"))
    assert group.offsets("retries") == [1]
    assert group.db.observer.one("select r.dispatched_epoch from coordinator.retries r") is None


def test_seek_backwards__dead_letters_at_or_above_the_target__are_closed_and_die_again_with_their_history(group):
    member = group.member()
    member.exchange(want=10)
    member.exchange(settled="{[0,3),[4,6),[7,10)}")
    member.bury(3)
    member.bury(6)
    assert group.db.observer.one(*seek_call("offset", 4))[5] == 1
    assert group.offsets("dead_letters") == [3]
    # A letter that stood would be replayed while its message is delivered anew.
    assert group.db.observer.run("select r.outcome from coordinator.replay('billing', 't', 0, array[6]) r") == [
        ("gone",)
    ]
    member.claim()
    member.exchange(want=10)
    member.bury(6)
    assert group.db.observer.one('select d.errors from coordinator.dead_letters d where d."offset" = 6') == [
        {"error": "d6"}, {"error": "d6"},
    ]  # fmt: skip
    assert group.offsets("past_failures") == []


def test_seek_forwards__replayed_dead_letter_that_it_passes__is_a_dead_letter_again(group):
    member = group.member()
    member.exchange(want=10)
    member.exchange(settled="{[0,3),[4,6)}")
    member.bury(3)
    assert group.newest()[1] == 6
    member.bury(7)
    member.exchange(settled="{[6,7)}")
    group.db.observer.run("select * from coordinator.replay('billing', 't', 0, array[3, 7])")
    # Both are below the committed offset: they stay parked.
    group.db.observer.one(*seek_call("latest"))
    assert group.offsets("retries") == [3, 7]
    group.db.observer.one(*seek_call("offset", 7))
    # 7 comes from the log again.
    assert (group.offsets("retries"), group.offsets("dead_letters")) == ([3], [])
    member.claim()
    member.exchange(want=10)
    member.bury(8)
    group.db.observer.run("select * from coordinator.replay('billing', 't', 0, array[8])")
    group.db.observer.one(*seek_call("latest"))
    assert (group.offsets("retries"), group.offsets("dead_letters")) == ([3], [8])
    assert group.db.observer.one("select d.reason, d.payload, d.replays from coordinator.dead_letters d") == (
        "skipped", b'"8"', 1,
    )  # fmt: skip


def test_bury__a_letter_stands_already__history_of_both_lives_is_kept(group):
    """The upsert once kept the letter's history and this error, and forgot how the message had failed in between."""
    member = group.member()
    member.exchange(want=5)
    member.bury(0)
    group.db.observer.run(
        'insert into coordinator.retries (group_id, topic_id, partition, "offset", fails, crashes, next_at, created_at, replays, errors) '
        "values (%s, %s, 0, 0, 2, 0, now(), now(), 1, %s)",
        group.id, group.db.topic_id, '[{"error": "between"}]',
    )  # fmt: skip
    member.bury(0)
    assert group.db.observer.one("select d.errors, d.replays from coordinator.dead_letters d") == (
        [{"error": "d0"}, {"error": "between"}, {"error": "d0"}], 1,
    )  # fmt: skip


def test_seek__crashes_of_the_claim__are_over(group):
    member = group.member()
    member.exchange(want=5)
    group.db.observer.run(
        "update coordinator.coordinators c set lease_until = coordinator.now_() - interval '1 s', lease_s = 1"
    )
    group.db.observer.run("select coordinator.reap(10)")
    assert group.db.observer.one("select count(*) from coordinator.crashes") == 1
    group.db.observer.one(*seek_call("earliest"))
    assert group.db.observer.one("select count(*) from coordinator.crashes") == 0


# ---- races


def test_late_ack__of_the_epoch_before_the_seek__is_refused(group):
    member = group.member()
    consume(member, 4)
    member.exchange(want=4)
    group.db.observer.one(*seek_call("earliest"))
    assert member.exchange(settled="{[4,8)}") == "fenced"
    raises("KG001", member.session.run, *member.ack_call(4))
    assert group.newest()[1:] == (0, 0, "{}")
    assert group.claim_row()[2] == 1


def test_seek__while_an_exchange_is_committing__comes_after_it(group):
    member = group.member()
    member.exchange(want=4)
    member.session.begin()
    member.exchange(settled="{[0,4)}")
    seek = group.db.session().start(*seek_call("shift", -1))
    assert not seek.done
    member.session.commit()
    (row,) = seek.result()
    assert row[:3] == (4, 3, 3)
    assert group.newest()[1] == 3


def test_seek__while_a_transactional_ack_is_committing__waits_and_folds_it(group):
    member = group.member()
    member.exchange(want=4)
    handler = group.db.session().begin()
    handler.run(*member.ack_call(0))
    session = group.db.session()
    seek = session.start(*seek_call("shift", 1))
    wait_until(lambda: waits(group.db, session))
    handler.commit()
    # From 1, where that ack has led: without waiting it would go to 1, and the ack stay behind as a stray row.
    assert seek.result()[0][:3] == (1, 2, 2)
    assert group.db.observer.one("select count(*) from coordinator.acks") == 0


def test_transactional_ack__while_a_seek_is_committing__waits_and_is_refused(group):
    member = group.member()
    member.exchange(want=4)
    operator = group.db.session().begin()
    operator.run(*seek_call("latest"))
    handler = group.db.session()
    handler.begin()
    ack = handler.start(*member.ack_call(0))
    wait_until(lambda: waits(group.db, handler))
    operator.commit()
    raises("KG001", ack.result)
    assert group.newest()[1] == 10


def test_takeover__while_a_seek_is_committing__passes_by_and_then_starts_at_its_target(group):
    member = group.member()
    consume(member, 4)
    operator = group.db.session().begin()
    operator.run(*seek_call("earliest"))
    assert member.claim() is None
    operator.commit()
    epoch = member.epoch
    assert member.claim() == epoch + 2
    assert member.hwm == 0


def test_seek__while_a_takeover_is_committing__fences_the_new_owner(group):
    second = group.member()
    second.session.begin()
    second.claim()
    session = group.db.session()
    seek = session.start(*seek_call("latest"))
    wait_until(lambda: waits(group.db, session))
    second.session.commit()
    assert seek.result()[0][2] == 10
    assert second.exchange(want=5) == "fenced"


def test_unforced_seek__while_a_member_is_joining__sees_it(group):
    joining = group.db.session().begin()
    member = Member(group, joining)
    session = group.db.session()
    seek = session.start(*seek_call("earliest", force=False))
    wait_until(lambda: waits(group.db, session))
    joining.commit()
    raises("KG004", seek.result)
    assert member.exchange(want=5) == "ok"


def test_seek__row_held_by_a_transaction_that_does_not_end__says_so(group):
    member = group.member()
    member.exchange(want=4)
    handler = group.db.session().begin()
    handler.run(*member.ack_call(0))
    group.db.observer.run("alter function coordinator.lock_claim(int, text, int, text, int) set lock_timeout = '100ms'")
    assert "does not end" in raises("KG004", group.db.session().run, *seek_call("latest"))


# ---- skip


@pytest.mark.parametrize("dead_letter", [False, True])
def test_skip__open_message__is_settled_and_the_owner_goes_on_behind_it(group, dead_letter):
    member = group.member()
    consume(member, 2)
    member.exchange(want=4)
    assert group.db.observer.one(*skip_call(2, execute=False))[:2] == ("open", None)
    assert group.newest()[1] == 2
    group.db.observer.one(*skip_call(2, dead_letter=dead_letter))
    assert group.newest()[1:] == (3, 3, "{}")
    assert group.offsets("dead_letters") == ([2] if dead_letter else [])
    assert group.skips() == ([] if dead_letter else [("{[2,3)}", "skip", "because")])
    assert member.exchange(settled="{[3,4)}") == "fenced"
    member.claim()
    assert member.hwm == 3
    raises("KG004", group.db.observer.one, *skip_call(2))


def test_skip__parked_head_of_a_key__lets_go_what_waits_behind_it(group):
    member = group.member()
    member.exchange(want=4)
    member.park(0, key="k", delay_s=1000)
    member.exchange(hard=[{"k": "behind", "key": "k", "offsets": [1, 2]}])
    assert group.db.observer.one(*skip_call(0))[:4] == ("parked", None, 1, "e0")
    assert group.offsets("retries") == [1, 2]
    member.claim()
    assert group.db.observer.run("select r.behind_key from coordinator.retries r order by 1") == [(False,), (False,)]
    assert group.db.observer.one("select s.errors -> 0 ->> 'error' from coordinator.skips s") == "e0"


def test_skip__message_that_is_not_read_yet__is_done_above_the_window(group):
    member = group.member()
    consume(member, 2)
    group.db.observer.one(*skip_call(7))
    assert group.newest()[1:] == (2, 2, "{[7,8)}")
    member.claim()
    member.exchange(want=100)
    rows = member.session.run(
        'select f."offset" from coordinator.fetch(%s, %s, %s, %s, %s) f',
        [group.id], [group.db.topic_id], [0], [member.epoch], ["{[0,)}"],
    )  # fmt: skip
    assert [offset for (offset,) in rows] == [2, 3, 4, 5, 6, 8, 9]


def test_skip__replayed_dead_letter__is_a_dead_letter_again(group):
    member = group.member()
    member.exchange(want=4)
    member.bury(1)
    group.db.observer.run("select * from coordinator.replay('billing', 't', 0, array[1])")
    group.db.observer.one(*skip_call(1))
    assert (group.offsets("retries"), group.offsets("dead_letters"), group.skips()) == ([], [1], [])


def test_skip__gap__is_refused(group):
    publisher = group.db.session().begin()
    offset = publisher.publish()
    group.member()
    raises("KG003", group.db.observer.one, *skip_call(offset))
    publisher.commit()
    assert group.db.observer.one(*skip_call(offset))[0] == "open"


def test_skip__while_the_message_is_acked_in_a_transaction__finds_it_settled(group):
    member = group.member()
    member.exchange(want=4)
    handler = group.db.session().begin()
    handler.run(*member.ack_call(0))
    session = group.db.session()
    skip = session.start(*skip_call(0))
    wait_until(lambda: waits(group.db, session))
    handler.commit()
    raises("KG004", skip.result)
    # Nothing of the refused skip stays: the ack is still to be folded, and the owner is the owner.
    assert group.db.observer.one("select count(*) from coordinator.acks") == 1
    assert member.exchange(want=1) == "ok"


# ---- lock order: groups before claims, and what foreign keys take


def test_reap__while_a_group_is_being_changed__holds_none_of_its_claims(group):
    """It once took the claims first, and waited for the group with them: whoever waits for a claim under the group deadlocked."""
    member = group.member()
    member.exchange(want=1)
    group.db.observer.run(
        "update coordinator.coordinators c set lease_s = 1, lease_until = coordinator.now_() - interval '1 s'"
    )
    changing = group.db.session().begin()
    changing.run("select 1 from coordinator.groups g where g.group_id = %s for no key update", group.id)
    reap = group.db.session().start("select coordinator.reap(10)")
    assert reap.result() == []
    changing.run("select 1 from coordinator.claims c for update nowait")
    changing.commit()
    assert group.db.observer.one("select array(select r.member_id from coordinator.reap(10) r)") == [member.id]


def test_store_plan__while_a_claim_is_being_taken__does_not_wait_for_it(group):
    member = group.member()
    taking = group.db.session().begin()
    taking.run("select 1 from coordinator.claims c for update")
    version = group.db.observer.one("select g.version from coordinator.groups g")
    plan = group.db.session().start(
        "select coordinator.store_plan(%s, %s, %s, %s, %s)",
        group.id, version, [group.db.topic_id], [0], [member.id],
    )  # fmt: skip
    assert plan.result() == [(True,)]
    taking.commit()


def test_delete_group__while_an_exchange_buries_a_message__waits_for_it_and_is_waited_for_by_nobody(group):
    """A dead letter takes KEY SHARE of its group: a deletion that held the row FOR UPDATE deadlocked with it."""
    member = group.member()
    member.exchange(want=4)
    member.session.begin()
    member.exchange(settled="{[0,1)}")
    session = group.db.session()
    deletion = session.start("select d.claims from coordinator.delete_group(%s, true) d", GROUP)
    wait_until(lambda: waits(group.db, session))
    assert member.bury(1) == "ok"
    member.session.commit()
    assert deletion.result() == [(2,)]
    assert group.offsets("dead_letters") == []


def test_join__while_its_group_is_being_deleted__makes_it_anew(group):
    deleting = group.db.session().begin()
    deleting.run("select * from coordinator.delete_group(%s)", GROUP)
    session = group.db.session()
    joining = session.start("select j.group_id from coordinator.join_group(null, %s, array['t']) j", GROUP)
    wait_until(lambda: waits(group.db, session))
    deleting.commit()
    ((made,),) = joining.result()
    assert made is not None
    assert made != group.id


def test_join__while_partitions_are_added__reads_them_too(group):
    adding = group.db.session().begin()
    adding.run("select coordinator.add_partitions('t', 5)")
    session = group.db.session()
    joining = session.start("select j.group_id from coordinator.join_group(null, 'second', array['t']) j")
    wait_until(lambda: waits(group.db, session))
    adding.commit()
    ((made,),) = joining.result()
    assert group.db.observer.one("select count(*) from coordinator.claims c where c.group_id = %s", made) == 5


def test_add_partitions__while_a_group_is_being_made__is_read_by_it(group):
    joining = group.db.session().begin()
    ((made,),) = joining.run("select j.group_id from coordinator.join_group(null, 'second', array['t']) j")
    session = group.db.session()
    adding = session.start("select coordinator.add_partitions('t', 5)")
    wait_until(lambda: waits(group.db, session))
    joining.commit()
    assert adding.result() == [(3,)]
    assert group.db.observer.one("select count(*) from coordinator.claims c where c.group_id = %s", made) == 5


def test_rotation__while_partitions_are_added__bounds_the_new_ones_as_well(group):
    """Bounds without the new partition said that the segment holds none of its messages: they were never read."""
    segment = group.db.observer.one("select coordinator.add_segment('t')")
    adding = group.db.session().begin()
    adding.run("select coordinator.add_partitions('t', 3)")
    session = group.db.session()
    opening = session.start("select coordinator.open_segment('t', %s)", segment)
    wait_until(lambda: waits(group.db, session))
    adding.commit()
    opening.result()
    assert group.db.observer.one("select cardinality(s.ceilings) from coordinator.segments s where s.segment = 1") == 3


def test_publish__in_a_snapshot_from_before_partitions_were_added__goes_to_one_that_is_there(group):
    publisher = group.db.session().begin("repeatable read")
    publisher.run("select 1 from coordinator.topics")
    group.db.observer.run("select coordinator.add_partitions('t', 64)")
    rows = publisher.run("select p.partition from generate_series(1, 50) n, coordinator.publish('t', '1', n::text) p")
    publisher.commit()
    assert {partition for (partition,) in rows} == {0, 1}
    rows = group.db.observer.run(
        "select p.partition from generate_series(1, 50) n, coordinator.publish('t', '1', n::text) p"
    )
    assert max(partition for (partition,) in rows) > 1


def test_delete_topic__a_publisher_is_open__its_table_goes_when_it_has_ended(group):
    publisher = group.db.session().begin()
    publisher.publish()
    group.db.observer.run("select * from coordinator.delete_topic('t', true)")
    assert (False,) in group.db.observer.run("select d.dropped from coordinator.drop_remains() d")
    raises("KG003", publisher.publish)
    publisher.rollback()
    group.db.observer.run("select * from coordinator.drop_remains()")
    assert group.db.observer.run("select * from coordinator.drop_remains()") == []


# ---- a stream of transactional acks (R9)


class Stream:
    """Handlers that ack in overlapping transactions, and stand still while the claim is paused, as an owner does."""

    def __init__(self, group, member, handlers=4):
        self.group, self.member = group, member
        self.offsets = iter(range(10_000))
        self.stopped = threading.Event()
        self.acked = []
        self.threads = [
            threading.Thread(target=self._handle, args=(number,), daemon=True) for number in range(handlers)
        ]
        for thread in self.threads:
            thread.start()
        wait_until(lambda: len(self.acked) > 2 * handlers)

    def _handle(self, number):
        # Two sessions in turns, the next one's ack before the last one's commit: also on a busy machine one is always open.
        session, last = self.group.db.session(), self.group.db.session().begin()
        state = "select s.claims -> 0 -> 5 from coordinator.group_state(array[%s]) s"
        session.run("select pg_sleep(%s)", number / 40)
        while not self.stopped.is_set() and not session.one(state, self.group.id):
            session.begin()
            offset = next(self.offsets)
            session.run(*self.member.ack_call(offset))
            last.commit()
            session.run("select pg_sleep(0.1)")
            self.acked.append(offset)
            session, last = last, session
        last.commit()

    def stop(self):
        self.stopped.set()
        for thread in self.threads:
            thread.join(10)


def test_seek__under_a_stream_of_acks__never_comes_to_its_turn_without_a_hold_and_at_once_with_one(db):
    group = TestedGroup(db, count=400)
    member = group.member()
    member.exchange(want=400)
    stream = Stream(group, member)
    naive = group.db.session().start(*seek_call("latest"))
    before = len(stream.acked)
    wait_until(lambda: len(stream.acked) > before + 80, 60)
    # Each ack that began after it has passed it, for two seconds; lock_timeout (5 s) does not see them as one wait.
    assert not naive.done
    group.db.observer.run("select coordinator.hold(%s, 't', array[0])", GROUP)
    started_s = time.monotonic()
    naive.result()
    assert time.monotonic() - started_s < 2
    stream.stop()
    assert group.newest()[1] == 400
    assert group.db.observer.one("select count(*) from coordinator.acks") == 0


# ---- replays of what is being deleted (case 24)


def test_replay__while_its_group_is_being_deleted__finds_no_group_and_leaves_nothing(group):
    member = group.member()
    member.exchange(want=4)
    member.bury(1)
    deleting = group.db.session().begin()
    deleting.run("select * from coordinator.delete_group(%s, true)", GROUP)
    session = group.db.session()
    replay = session.start("select r.outcome from coordinator.replay(%s, 't', 0, array[1]) r", GROUP)
    wait_until(lambda: waits(group.db, session))
    deleting.commit()
    raises("KG003", replay.result)
    assert (group.offsets("retries"), group.offsets("dead_letters")) == ([], [])


def test_delete_group__while_a_replay_is_committing__takes_what_was_replayed(group):
    member = group.member()
    member.exchange(want=4)
    member.bury(1)
    replaying = group.db.session().begin()
    replaying.run("select r.outcome from coordinator.replay(%s, 't', 0, array[1]) r", GROUP)
    session = group.db.session()
    deletion = session.start("select d.dead_letters from coordinator.delete_group(%s, true) d", GROUP)
    wait_until(lambda: waits(group.db, session))
    replaying.commit()
    assert deletion.result() == [(0,)]
    assert (group.offsets("retries"), group.offsets("dead_letters")) == ([], [])


def test_replay__while_its_topic_is_being_deleted__finds_no_topic_and_leaves_nothing(group):
    member = group.member()
    member.exchange(want=4)
    member.bury(1)
    deleting = group.db.session().begin()
    deleting.run("select * from coordinator.delete_topic('t', true)")
    session = group.db.session()
    replay = session.start("select r.outcome from coordinator.replay(%s, 't', 0, array[1]) r", GROUP)
    wait_until(lambda: waits(group.db, session))
    deleting.commit()
    raises("KG003", replay.result)
    assert (group.offsets("retries"), group.offsets("dead_letters")) == ([], [])
    assert member.exchange(settled="{[0,1)}") == "fenced"


def test_seek__while_a_replay_is_committing__waits_and_takes_it_into_account(group):
    member = group.member()
    member.exchange(want=4)
    member.bury(1)
    replaying = group.db.session().begin()
    replaying.run("select r.outcome from coordinator.replay(%s, 't', 0, array[1]) r", GROUP)
    session = group.db.session()
    seek = session.start(*seek_call("latest"))
    wait_until(lambda: waits(group.db, session))
    replaying.commit()
    assert seek.result()[0][4] == 1
    # Passed with its payload: a dead letter again, and not a parked message that nobody counts.
    assert (group.offsets("retries"), group.offsets("dead_letters")) == ([], [1])
