"""A topic with a limit refuses publishes while its slowest group is too far behind, and takes them again afterwards."""

import psycopg
import pytest
from support.sessions import Db


@pytest.fixture
def limited(dsn):
    """Topic `t` of two partitions takes 5 messages beyond what the slowest group has settled."""
    with Db(dsn, partitions=2) as made:
        made.observer.run("update coordinator.topics set max_backlog = 5 where name = 't'")
        yield made


def join(db, group="g"):
    db.observer.run("select coordinator.join_group(null, %s, array['t'])", group)


def settle(db, offset, group="g", partition=0):
    """Progress as an exchange writes it."""
    db.observer.run(
        "insert into coordinator.progress (group_id, topic_id, partition, seq, epoch, committed, hwm, done, oldest_seq, at) "
        "select p.group_id, p.topic_id, p.partition, p.seq + 1, p.epoch, %s, %s, '{}', p.oldest_seq, now() "
        "from coordinator.progress p join coordinator.groups g using (group_id) "
        'where g.name = %s and p."partition" = %s order by p.seq desc limit 1',
        offset,
        offset,
        group,
        partition,
    )


def refused(session, partition=0):
    with pytest.raises(psycopg.Error) as caught:
        session.publish(partition=partition)
    return caught.value.sqlstate == "KG009"


def test_backlog__no_group__is_never_refused(limited):
    a = limited.session()
    for number in range(12):
        assert a.publish() == number


def test_backlog__group_reaches_the_limit__next_publish_is_refused(limited):
    join(limited)
    a = limited.session()
    for _ in range(3):
        a.publish(partition=0)
    for _ in range(2):
        a.publish(partition=1)
    assert refused(a, partition=0)
    assert refused(a, partition=1)
    assert (limited.high(0), limited.high(1)) == (2, 1), "a refused publish burns no offset"


def test_backlog__group_catches_up__is_taken_at_once(limited):
    join(limited)
    a = limited.session()
    for _ in range(5):
        a.publish()
    assert refused(a)
    settle(limited, 2)
    assert [a.publish(), a.publish()] == [5, 6]
    assert refused(a)


def test_backlog__several_groups__the_slowest_counts(limited):
    join(limited, "fast")
    join(limited, "slow")
    a = limited.session()
    for _ in range(5):
        a.publish()
    settle(limited, 5, "fast")
    assert refused(a)
    settle(limited, 5, "slow")
    assert a.publish() == 5


def test_backlog__acked_out_of_order__counts_what_is_open(limited):
    join(limited)
    a = limited.session()
    for _ in range(5):
        a.publish()
    limited.observer.run(
        "insert into coordinator.progress (group_id, topic_id, partition, seq, epoch, committed, hwm, done, oldest_seq, at) "
        "select p.group_id, p.topic_id, p.partition, p.seq + 1, p.epoch, 0, 5, '{[1,5)}', 0, now() "
        "from coordinator.progress p where p.partition = 0"
    )
    for _ in range(4):
        a.publish()
    assert refused(a)


def test_backlog__parked_messages__count(limited):
    join(limited)
    a = limited.session()
    for _ in range(5):
        a.publish()
    settle(limited, 5)
    limited.observer.run(
        'insert into coordinator.retries (group_id, topic_id, partition, "offset", fails, crashes, next_at, created_at) '
        "select 1, 1, 0, n, 1, 0, now(), now() from generate_series(0, 2) n"
    )
    assert [a.publish(), a.publish()] == [5, 6]
    assert refused(a)


def test_backlog__batch_larger_than_the_room__passes_and_the_next_is_refused(limited):
    join(limited)
    a = limited.session()
    a.run("select coordinator.publish_many('t', array_fill('1'::bytea, array[20]))")
    assert refused(a)


def test_backlog__repeat_of_a_published_message__gets_its_place_all_the_same(limited):
    """Otherwise a retry after an unknown outcome would be told that nothing was published."""
    join(limited)
    a = limited.session()
    call = "select p.duplicate from coordinator.publish('t', '1', p_dedup_key => %s) p"
    for number in range(5):
        a.run(call, str(number))
    assert a.one(call, "3") is True
    with pytest.raises(psycopg.Error) as caught:
        a.one(call, "new")
    assert caught.value.sqlstate == "KG009"


def test_backlog__scheduling__is_not_refused(limited):
    join(limited)
    a = limited.session()
    for _ in range(5):
        a.publish()
    a.run("select coordinator.publish('t', '1', p_delay_s => 60)")
    assert a.one("select count(*) from coordinator.scheduled") == 1


def test_backlog__limit_is_taken_away_or_lowered__counts_from_the_next_publish(limited):
    join(limited)
    a = limited.session()
    for _ in range(3):
        a.publish()
    limited.observer.run("update coordinator.topics set max_backlog = 3")
    assert refused(a)
    limited.observer.run("update coordinator.topics set max_backlog = null")
    assert a.publish() == 3


def test_backlog__within_a_second__is_read_once(limited):
    """What it costs: with a lag that is far from the limit, the tables are read once a second and session."""
    join(limited)
    limited.observer.run("update coordinator.topics set max_backlog = 1000000")
    limited.observer.run(
        "create sequence coordinator.test_reads; "
        "alter function coordinator.backlog(coordinator.topics) rename to real_backlog"
    )
    limited.observer.run(
        "create function coordinator.backlog(p_topic coordinator.topics) returns bigint language sql as "
        "$$ select nextval('coordinator.test_reads'); select coordinator.real_backlog(p_topic) $$"
    )
    # A clock that stands: this machine may take longer than a second for what follows.
    limited.observer.run(
        "create or replace function coordinator.now_() returns timestamptz language sql volatile as "
        "$$ select timestamptz '2030-01-01' $$"
    )
    a = limited.session()
    for _ in range(50):
        a.publish()
    assert limited.observer.one("select last_value from coordinator.test_reads") == 1


@pytest.mark.parametrize("limit", [0, -1])
def test_create_topic__limit_below_one__is_refused(limited, limit):
    with pytest.raises(psycopg.Error) as caught:
        limited.observer.run("select coordinator.create_topic('u', 1, p_max_backlog => %s)", limit)
    assert caught.value.sqlstate == "KG005"


@pytest.mark.parametrize("window_s", [0, -1, 0.5, 4e7, float("nan"), float("inf")])
def test_create_topic__window_out_of_bounds__is_refused(limited, window_s):
    with pytest.raises(psycopg.Error) as caught:
        limited.observer.run("select coordinator.create_topic('u', 1, p_dedup_window_s => %s)", window_s)
    assert caught.value.sqlstate == "KG005"
