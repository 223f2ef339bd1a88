"""A process that was declared dead and is alive takes back what it was charged with, the pause that came of it, too."""

import pytest
from support.group import TestedGroup


@pytest.fixture
def group(db):
    return TestedGroup(db)


@pytest.fixture
def charged(group):
    """A member that was handed message 3 out of the parked, and was declared dead with it."""
    member = group.member()
    member.exchange(want=10)
    member.park(3)
    dispatch(member)
    group.db.observer.run("update coordinator.coordinators set lease_until = '-infinity'")
    assert group.db.observer.one("select count(*) from coordinator.reap(1000)") == 1
    assert row(group) == (1, 1, False)
    return member


def dispatch(member):
    member.session.run(
        "select * from coordinator.dispatch_due(%s, %s, %s, %s, %s, %s)",
        member.id, [member.group.id], [member.db.topic_id], [member.partition], [member.epoch], [10],
    )  # fmt: skip


def row(group):
    """Failures, crashes, and whether message 3 may start."""
    return group.db.observer.one(
        'select r.fails, r.crashes, r.next_at <= coordinator.now_() from coordinator.retries r where r."offset" = 3'
    )


def withdraw(group, member):
    group.db.observer.run("select coordinator.withdraw_charge(%s)", member.id)


def test_withdraw_charge__nothing_has_failed_since__it_may_start_at_once(group, charged):
    withdraw(group, charged)
    assert row(group) == (1, 0, True)


def test_withdraw_charge__has_failed_since__keeps_the_pause_of_that(group, charged):
    """Mutant: whatever pause there is goes with the charge."""
    heir = group.member()
    group.db.observer.run("update coordinator.retries set next_at = coordinator.now_()")
    dispatch(heir)
    heir.park(3, delay_s=100)
    withdraw(group, charged)
    assert row(group) == (2, 0, False)


def test_charge__the_dead_one_goes_on_and_fails_with_it_again__keeps_the_pause_of_the_crash(group, charged):
    """Mutant: the newest failure's pause replaces that of the crash, which nobody has withdrawn."""
    charged.park(3, delay_s=0)
    assert row(group) == (2, 1, False)
