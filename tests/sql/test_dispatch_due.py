"""What is due among the parked is handed out: in the order of its times, up to a limit, and nothing that is older than is asked for."""

import re

import psycopg
import pytest
from support.group import TestedGroup

CALL = "select d.due_in_s from coordinator.dispatch_due(%s, array[%s], array[%s], array[0], array[%s::bigint], array[%s], %s::float8[]) d"


@pytest.fixture
def member(db):
    group = TestedGroup(db)
    made = group.member()
    made.exchange(want=10)
    # Due 100, 90, ... 10 seconds ago, and two that are due later.
    db.observer.run(
        'insert into coordinator.retries (group_id, topic_id, partition, "offset", fails, crashes, next_at, created_at) '
        "select %s, %s, 0, n, 1, 0, coordinator.now_() - make_interval(secs => 100 - 10 * n), coordinator.now_() "
        "from generate_series(0, 11) n",
        group.id,
        db.topic_id,
    )
    return made


def look(member, limit, age_s=None):
    """Hand out; how long ago, or ahead, the next one is due, and the offsets that were handed out."""
    group = member.group
    session = group.db.session().begin()
    due_in_s = session.one(
        CALL, member.id, group.id, group.db.topic_id, member.epoch, limit, None if age_s is None else [age_s]
    )
    session.commit()
    handed = group.db.observer.run(
        'select r."offset" from coordinator.retries r where r.dispatched_epoch is not null order by 1'
    )
    return due_in_s, [offset for (offset,) in handed]


def test_dispatch_due__more_than_the_limit__the_oldest_first_and_the_next_is_told(member):
    due_in_s, handed = look(member, 3)
    assert handed == [0, 1, 2]
    assert due_in_s == pytest.approx(-70, abs=5)
    due_in_s, handed = look(member, 100)
    assert handed == list(range(11))
    assert due_in_s == pytest.approx(10, abs=5)


def test_dispatch_due__of_an_age__older_ones_are_not_looked_at(member):
    due_in_s, handed = look(member, 2, age_s=55)
    assert handed == [5, 6]
    assert due_in_s == pytest.approx(-30, abs=5)
    assert look(member, 100, age_s=55)[1] == list(range(5, 11))
    assert look(member, 100)[1] == list(range(11))


def test_dispatch_due__no_room__hands_out_nothing_and_tells_when(member):
    due_in_s, handed = look(member, 0)
    assert (due_in_s, handed) == (pytest.approx(-100, abs=5), [])


def test_dispatch_due__the_claim_is_locked__hands_out_nothing_and_waits_for_nobody(member):
    holder = member.group.db.session().begin()
    holder.run("select 1 from coordinator.claims c for update")
    due_in_s, handed = look(member, 100)
    assert (due_in_s, handed) == (pytest.approx(-100, abs=5), [])
    holder.rollback()


def test_dispatch_due__of_another_epoch__hands_out_nothing(member):
    member.epoch += 1
    assert look(member, 100)[1] == []


def pages(member, age_s):
    """How many pages one look reads."""
    group, ages = member.group, None if age_s is None else [age_s]
    session = group.db.session().begin()
    # Twice: the first call of a session reads the catalogue, too.
    for _ in range(2):
        plan = session.run(
            "explain (analyze, buffers, costs off, timing off) " + CALL,
            member.id, group.id, group.db.topic_id, member.epoch, 100, ages,
        )  # fmt: skip
    session.rollback()
    return int(re.search(r"shared hit=(\d+)", "\n".join(line for (line,) in plan)).group(1))


def test_dispatch_due__many_that_have_gone_under_an_old_snapshot__are_not_passed_over(member):
    """What vacuum can't take away. Mutant: the primary key in place of the index by time."""
    group, observer = member.group, member.db.observer
    with psycopg.connect(member.db.dsn) as old:
        old.execute("set transaction isolation level repeatable read")
        old.execute("select count(*) from coordinator.retries")
        for first in range(1000, 5000, 500):
            observer.run(
                'insert into coordinator.retries (group_id, topic_id, partition, "offset", fails, crashes, next_at, created_at) '
                "select %s, %s, 0, n, 1, 0, coordinator.now_() - interval '1 hour', coordinator.now_() "
                "from generate_series(%s::int, %s::int) n",
                group.id, group.db.topic_id, first, first + 499,
            )  # fmt: skip
            observer.run('delete from coordinator.retries r where r."offset" >= 1000')
        everything, lately = pages(member, None), pages(member, 600)
        print(f"{everything} pages, and {lately} of the last ten minutes")
        assert lately < everything / 4
        old.rollback()
