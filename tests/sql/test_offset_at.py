"""Where a group starts that starts at a time, against a search of all messages."""

import random
import secrets

import pytest

# The time is what a session says it is, in seconds.
CLOCK = """
create or replace function coordinator.now_() returns timestamptz language plpgsql volatile as $$
begin
    return 'epoch'::timestamptz + make_interval(secs => coalesce(nullif(current_setting('test.now', true), ''), '0')::float8);
end
$$
"""


@pytest.fixture
def clocked(db):
    db.observer.run(CLOCK)
    return db


def at(session, time_s):
    session.run("select set_config('test.now', %s, false)", str(time_s))
    return session


def offset_at(db, time_s, partition=0):
    return db.observer.one(
        "select coordinator.offset_at(%s, %s, 'epoch'::timestamptz + make_interval(secs => %s::float8))",
        db.topic_id,
        partition,
        time_s,
    )


def bulk(session, count, partition=0):
    session.run(
        "select coordinator.publish_many('t', array_fill('1'::bytea, array[%s]), "
        "p_partitions => array_fill(%s::int, array[%s]), p_wake => false)",
        count,
        partition,
        count,
    )


def test_offset_at__empty_partition__is_the_first_offset(clocked):
    assert offset_at(clocked, 5) == 0


def test_offset_at__time_after_the_last__is_the_next_offset(clocked):
    bulk(at(clocked.session(), 3), 4)
    assert (offset_at(clocked, 3), offset_at(clocked, 3.5), offset_at(clocked, 5, partition=1)) == (0, 4, 0)


def test_offset_at__random_log__equals_a_search_of_all_messages(clocked):
    seed = secrets.randbelow(10**6)
    print(f"seed {seed}")
    choice = random.Random(seed)
    session = clocked.session()
    now_s = 0.0
    for _ in range(120):
        now_s += choice.choice([0, 0.5, 1, 3])
        # Who pauses between the clock and its offset bears a time that is too early.
        at(session, max(now_s - choice.choice([0, 0, 0, 2, 9]), 0)).begin()
        bulk(session, choice.choice([1, 1, 2, 30]), choice.choice([0, 0, 1]))
        session.run(choice.choice(["commit", "commit", "commit", "rollback"]))
        if choice.random() < 0.06:
            clocked.rotate()
    for partition in (0, 1):
        log = clocked.observer.run(
            'select m."offset", extract(epoch from m.published_at)::float8 from coordinator.topic_1 m where m.partition = %s',
            partition,
        )
        for time_s in [step * 0.75 for step in range(int(now_s / 0.75) + 3)]:
            wanted = min((offset for offset, at_s in log if at_s >= time_s), default=None)
            found = offset_at(clocked, time_s, partition)
            # It may say a rolled-back offset; what counts is the first message that is read.
            assert min((offset for offset, _ in log if offset >= found), default=None) == wanted, f"time {time_s}"


def test_offset_at__too_early_time_where_the_search_looks_first__loses_nothing_below_it(clocked):
    # 12,000 messages at 20 s, one of a publisher that paused since 10 s, 12,000 at 30 s: the search looks at that one.
    session = clocked.session()
    bulk(at(session, 20), 12_000)
    bulk(at(session, 10), 1)
    bulk(at(session, 30), 12_000)
    assert offset_at(clocked, 15) == 0
    assert offset_at(clocked, 25) == 12_001


def test_published_at__one_call__is_read_once_and_before_the_offsets(clocked):
    a, b = at(clocked.session(), 10).stop_at("publish:again"), at(clocked.session(), 20)
    with clocked.gate("publish:again") as gate:
        publishing = a.start_publish()
        gate.arrived()
        at(clocked.observer, 99)
        b.publish()
    publishing.result()
    log = clocked.observer.run(
        'select m."offset", extract(epoch from m.published_at)::int from coordinator.topic_1 m order by m."offset"'
    )
    assert log == [(0, 10), (1, 20)]
