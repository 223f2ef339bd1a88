"""What an old snapshot keeps makes few rows in many pages of a table: no call of a consumer may then read all of those."""

import json

import psycopg
import pytest
from support.group import TestedGroup

GONE = 20_000
ALIVE = 10
CLAIM = "array[%(group)s], array[%(topic)s], array[0]"
CALLS = {
    "ack": "select coordinator.ack(%(owner)s, %(group)s, %(topic)s, 0, %(epoch)s, %(offsets)s, array_fill(0, array[100]))",
    "settle_hard": f"select count(*) from coordinator.settle_hard({CLAIM}, array[%(epoch)s::bigint], array[1], %(fold)s)",
    "fold_acks": "select coordinator.fold_acks(%(group)s, %(topic)s, 0)",
    "resolve": f"select r.acked from coordinator.resolve(%(owner)s, {CLAIM}, array[%(epoch)s::bigint]) r",
    "fetch_retries": f"select count(*) from coordinator.fetch_retries({CLAIM}, array[%(epoch)s::bigint], array['{{}}'])",
    "charge_crash": "select coordinator.charge_crash(%(owner)s)",
}


@pytest.mark.parametrize("call", CALLS)
def test_call__a_snapshot_keeps_what_is_gone__reads_by_the_keys(dsn, db, call):
    """Mutant: any of them without its `set enable_seqscan = off`, to which a table of ten rows looks small."""
    group = TestedGroup(db)
    member = group.member()
    member.exchange(want=10)
    names = {"owner": member.id, "group": group.id, "topic": db.topic_id, "epoch": member.epoch}
    facts = {
        **names,
        "offsets": list(range(GONE + ALIVE, GONE + ALIVE + 100)),
        "fold": json.dumps([{"o": 1, "k": "fold", "offsets": list(range(GONE, GONE + ALIVE))}]),
    }
    with (
        psycopg.connect(dsn, autocommit=True) as connection,
        psycopg.connect(dsn) as holder,
    ):
        holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        holder.execute("select 1 from coordinator.acks").fetchall()
        fill(connection, {**names, "gone": GONE, "alive": ALIVE})
        before = scans(connection)
        connection.execute(CALLS[call], facts)
        assert scans(connection) == before


def fill(connection, facts):
    """Rows of acks and retries that are gone and kept, a few that are there; and statistics of those alone."""
    connection.execute(
        'insert into coordinator.acks (group_id, topic_id, partition, "offset", replay, epoch) '
        "select %(group)s, %(topic)s, 0, n, 0, %(epoch)s from generate_series(0, %(gone)s + %(alive)s - 1) n",
        facts,
    )
    connection.execute(
        "insert into coordinator.retries "
        '(group_id, topic_id, partition, "offset", key, fails, crashes, next_at, behind_key, created_at) '
        "select %(group)s, %(topic)s, 0, n, 'k', 1, 0, now(), n %% 2 = 0, now() from generate_series(0, %(gone)s + %(alive)s - 1) n",
        facts,
    )
    for table in ("acks", "retries"):
        connection.execute(f'delete from coordinator.{table} r where r."offset" < %(gone)s', facts)
        connection.execute(f"vacuum analyze coordinator.{table}")


def scans(connection):
    """Sequential scans of the two tables that this session has made and told."""
    connection.execute("select pg_stat_force_next_flush()")
    connection.execute("select pg_stat_clear_snapshot()")
    return connection.execute(
        "select s.relname, s.seq_scan from pg_stat_all_tables s "
        "where s.relid in ('coordinator.acks'::regclass, 'coordinator.retries'::regclass) order by 1"
    ).fetchall()
