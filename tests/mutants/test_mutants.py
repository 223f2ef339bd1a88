"""Each race test must be able to fail: the schedules pass on the protocol as it is, and lose a message on each mutant."""

import pytest
from support.mutants import GATED, MUTANTS, ReadsAhead, caught
from support.reader import Reader
from support.schedules import SCHEDULES, publish_after_an_empty_read
from support.sessions import Db


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.__name__)
def test_nothing_is_lost__in_schedule(direct_dsn, schedule):
    with Db(direct_dsn, patches=GATED) as db:
        schedule(db, Reader)


def test_nothing_is_lost__reader_looks_past_the_window(direct_dsn):
    with Db(direct_dsn, patches=GATED) as db:
        publish_after_an_empty_read(db, ReadsAhead)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "_"))
def test_mutant__is_caught(direct_dsn, mutant):
    assert caught(direct_dsn, mutant) is not None


def test_schedules__each_is_needed_or_covers_a_rule():
    assert {mutant.schedule for mutant in MUTANTS} == set(SCHEDULES)
