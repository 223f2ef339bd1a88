"""What a seek keeps of how messages had failed: as long as they may die again, and not for ever."""

import pytest
from support.group import GROUP, TestedGroup

DAY_S = 86_400


@pytest.fixture
def group(db):
    return TestedGroup(db)


@pytest.fixture
def twice(group):
    """Messages 3 and 6 were dead letters, and a seek to the beginning has given them back."""
    member = group.member()
    member.exchange(want=10)
    member.exchange(settled="{[0,3),[4,6),[7,10)}")
    member.bury(3)
    member.bury(6)
    seek(group, 0)
    assert group.offsets("past_failures") == [3, 6]
    member.claim()
    member.exchange(want=10)
    return member


def seek(group, offset):
    group.db.observer.one(
        "select s.epoch from coordinator.seek(%s, 't', 0, 'offset', %s, null, true, true) s", GROUP, offset
    )


def sweep(group):
    group.db.observer.run("select coordinator.sweep(p_every_s => 0)")
    return group.offsets("past_failures")


def move_clock(group, seconds):
    group.db.observer.run(
        "create or replace function coordinator.now_() returns timestamptz language sql volatile as "
        f"$$ select clock_timestamp() + interval '{seconds} s' $$"
    )


def test_past_failures__message_was_handled_and_is_in_the_log__stay_for_the_next_seek(group, twice):
    """R10: the history of a message that dies once more has all of it."""
    twice.exchange(settled="{[0,10)}")
    move_clock(group, 1000 * DAY_S)
    assert sweep(group) == [3, 6]
    seek(group, 0)
    twice.claim()
    twice.exchange(want=10)
    twice.bury(6)
    assert group.db.observer.one("select jsonb_array_length(d.errors) from coordinator.dead_letters d") == 2
    assert sweep(group) == [3]


def test_past_failures__message_is_gone_from_the_log__go(group, twice):
    twice.exchange(settled="{[0,6)}")
    group.db.observer.run("update coordinator.topics set first_offsets = array[4]")
    assert sweep(group) == [6]


def test_past_failures__message_is_gone_from_the_log_and_parked__stay(group, twice):
    twice.exchange(settled="{[0,3),[4,6)}")
    twice.park(3, delay_s=1000)
    group.db.observer.run("update coordinator.topics set first_offsets = array[4]")
    assert sweep(group) == [3, 6]


def test_past_failures__older_than_dead_letters_are_kept__go_once_their_message_was_handled(group, twice):
    group.db.observer.run("select coordinator.set_group_expiry(%s, null, 'release', %s)", GROUP, DAY_S)
    twice.exchange(settled="{[0,4)}")
    assert sweep(group) == [3, 6]
    move_clock(group, 2 * DAY_S)
    assert sweep(group) == [6]


def test_past_failures__more_than_dead_letters_are_kept__the_oldest_go(group, twice):
    group.db.observer.run("update coordinator.past_failures set at = at - interval '1 s' where \"offset\" = 6")
    group.db.observer.run("select coordinator.set_max_dead_letters(%s, 1)", GROUP)
    assert sweep(group) == [3]
