"""What is looked for among the parked: not again what has gone, which an index may keep for long."""

import pytest
from support.engine_driver import Shell
from support.fake_database import FakeDatabase

from coordinator.core.loop import Exchange
from coordinator.model import PartitionKey

KEY = PartitionKey(1, 1, 0)


@pytest.fixture
def shell():
    database = FakeDatabase({1: 1}, {1: [1]})
    made = Shell(database, ordering="none")
    made.claim_all()
    made.until_waiting()
    return made


def next_age_s(shell):
    """What the next look among the parked is told, and carry it out."""
    partition = shell.engine.partitions[KEY]
    partition.due_at_s = shell.now_s
    command = shell.engine.next_command(shell.now_s)
    assert isinstance(command, Exchange)
    (age_s,) = command.due_ages_s
    shell.answer(command)
    return age_s


def test_due__first_look__is_at_all(shell):
    partition = shell.engine.partitions[KEY]
    partition.due_looked_s = float("-inf")
    assert next_age_s(shell) is None


def test_due__within_a_minute_of_that__looks_a_minute_behind_the_last_look(shell):
    next_age_s(shell)
    shell.now_s += 5
    assert next_age_s(shell) == pytest.approx(65, abs=0.5)
    shell.now_s += 5
    assert next_age_s(shell) == pytest.approx(65, abs=0.5)


def test_due__a_minute_later_or_told_to__looks_at_all_again(shell):
    shell.engine.partitions[KEY].due_looked_s = float("-inf")
    assert next_age_s(shell) is None
    shell.now_s += 59
    assert next_age_s(shell) is not None
    shell.now_s += 1
    assert next_age_s(shell) is None
    shell.engine.partitions[KEY].check_parked = True
    assert next_age_s(shell) is None


def test_due__something_waits_for_room__is_not_passed_over(shell):
    partition = shell.engine.partitions[KEY]
    partition.due_looked_s = shell.now_s
    # Due ten seconds ago, and more than one exchange hands out.
    partition.on_due_looked_at(shell.now_s - 10, None)
    assert partition.due_age_s(shell.now_s) == 70
    assert partition.due_age_s(shell.now_s + 20) == 90
