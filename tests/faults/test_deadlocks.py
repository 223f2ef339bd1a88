"""Everything that locks, at once, in loops, with a deadlock_timeout of 50 ms: nobody deadlocks.

Six seconds in the suite; a minute with COORDINATOR_TEST_FULL=1, and any other time by COORDINATOR_TEST_DEADLOCK_S.
"""

import os
import random
import threading
import time
from collections import Counter

import psycopg
from support.group import GROUP, Member, TestedGroup, seek_call, skip_call
from support.sessions import Db

SECONDS = float(os.environ.get("COORDINATOR_TEST_DEADLOCK_S", "60" if os.environ.get("COORDINATOR_TEST_FULL") else "6"))
PARTITIONS = 4

RETENTION = '{"retention_s": 1, "unconsumed": "drop", "segment_max_bytes": 8192}'

# What others have done first, or have locked: refused, and tried again. 40P01 is in no such list.
REFUSED = {"KG001", "KG002", "KG003", "KG004", "KG011", "KG013", "55P03", "25P03"}
# Of what a topic or group was while it was deleted: its table, its sequences, the rows that others refer to.
GONE = {"42P01", "23503", "XX000", "P0002", "KG005"}


class Storm:
    """Workers that do one kind of thing over and over, each on sessions of its own, until the time is up."""

    def __init__(self, db, group, seed):
        self.db = db
        self.group = group
        self.seed = seed
        self.done = Counter()
        self.refused = Counter()
        self.failures = []
        self.gone = set()
        self.ends_s = time.monotonic() + SECONDS
        self.threads = []

    def add(self, name, act, count=1):
        for number in range(count):
            chance = random.Random(f"{self.seed} {name} {number}")
            thread = threading.Thread(target=self._run, args=(name, act, chance), daemon=True)
            self.threads.append(thread)

    def _run(self, name, act, chance):
        session = self.db.session()
        session.run("set deadlock_timeout = '50ms'")
        session.run("set lock_timeout = '2s'")
        state = {}
        while time.monotonic() < self.ends_s and not self.failures:
            try:
                act(session, chance, state)
                self.done[name] += 1
            except ValueError:
                # No row where there was one.
                state.clear()
            except psycopg.Error as error:
                if session.connection.info.transaction_status:
                    session.rollback()
                if error.sqlstate not in REFUSED | self.gone:
                    self.failures.append((name, error))
                self.refused[f"{name} {error.sqlstate}"] += 1
                # Declared dead, for one: begin anew.
                state.clear()

    def run(self):
        for thread in self.threads:
            thread.start()
        for thread in self.threads:
            thread.join(SECONDS + 60)
            assert not thread.is_alive()


def consume(group):
    """Join, claim all partitions, exchange them together, ack in transactions, bury, park; die now and then, or leave."""

    def act(session, chance, state):
        member = state.get("member")
        if member is None:
            member = state["member"] = Member(group, session, lease_s=chance.choice((0.2, 60)))
        partitions = list(range(PARTITIONS))
        rows = session.run(
            'select c."partition", c.epoch, c.seq, c.committed from coordinator.claim(%s, %s, %s, %s) c',
            member.id, [group.id] * PARTITIONS, [group.db.topic_id] * PARTITIONS, partitions,
        )  # fmt: skip
        for _ in range(3):
            if not rows:
                break
            session.begin()
            answers = session.run(*member.exchange_many(rows, want=20))
            session.commit()
            rows = [
                (row[0], row[1], seq, hwm, committed)
                for row, (status, seq, committed, hwm) in zip(rows, answers, strict=True)
                if status == "ok"
            ]
            for partition, epoch, _, hwm, committed in rows:
                if hwm > committed and chance.random() < 0.3:
                    session.begin()
                    session.run(*member.ack_call(chance.randrange(committed, hwm), partition=partition, epoch=epoch))
                    session.commit()
            # Each offset fails in one way: no owner lets a message that it has buried wait for a retry.
            failed = [
                (place, chance.randrange(committed, hwm))
                for place, (*_, hwm, committed) in enumerate(rows, 1)
                if hwm > committed and chance.random() < 0.5
            ]
            hard = [member.entry(place, ("retry", "dead")[offset % 2], offset) for place, offset in failed]
            settled = [
                f"{{[{committed},{max(committed, hwm - 3)})}}" if hwm - 3 > committed else "{}"
                for *_, hwm, committed in rows
            ]
            if rows:
                session.begin()
                session.run(*member.exchange_many(rows, settled=settled, hard=hard))
                if chance.random() < 0.2:
                    session.run(*member.release_call(rows))
                session.commit()
            break
        if chance.random() < 0.1:
            if chance.random() < 0.5:
                session.run("select coordinator.leave(%s)", member.id)
            state.clear()

    return act


def test_everything_that_locks__at_once__nobody_deadlocks(dsn):
    seed = os.environ.get("COORDINATOR_TEST_SEED") or str(random.randrange(10**6))
    print(f"seed {seed}")
    with Db(dsn, partitions=PARTITIONS) as db:
        db.observer.run("select coordinator.alter_topic('t', %s::jsonb)", RETENTION)
        group = TestedGroup(db, count=50)
        storm = Storm(db, group, seed)
        storm.add("consume", consume(group), 4)
        storm.add("publish", lambda s, c, _: [s.publish(n, c.randrange(PARTITIONS)) for n in range(20)], 2)
        storm.add("reap", lambda s, _c, _s: s.run("select coordinator.reap(3600)"))
        storm.add(
            "seek",
            lambda s, c, _: s.run(*seek_call("shift", c.randrange(-20, 21), partition=c.randrange(PARTITIONS))),
            2,
        )
        storm.add("skip", lambda s, c, _: skip_one(s, c, group))
        storm.add(
            "pause",
            lambda s, c, _: s.run(
                f"select * from coordinator.{c.choice(('pause', 'resume', 'hold', 'let_go'))}(%s)", GROUP
            ),
        )
        storm.add("replay", lambda s, c, _: each_dead(s, c, "select * from coordinator.replay(%s, 't', %s, %s)"))
        storm.add("purge", lambda s, c, _: each_dead(s, c, "select coordinator.purge(%s, 't', %s, %s)"))
        storm.add("trim", trim)
        storm.add("plan", lambda s, _c, _s: plan(s, group))
        for task in ("rotate_due()", "skip_expired()", "retire_segments()", "drop_retired(0)", "maintain_publishing()"):
            storm.add(task, lambda s, _c, _s, task=task: s.run(f"select * from coordinator.{task}"))
        storm.add(
            "alter",
            lambda s, c, _: s.run(
                "select coordinator.alter_topic('t', %s::jsonb)", f'{{"wake": {c.choice(("true", "false"))}}}'
            ),
        )
        storm.run()
        deadlocks = db.observer.one("select d.deadlocks from pg_stat_database d where d.datname = current_database()")
    assert [f"{name}: {error}" for name, error in storm.failures] == [], seed
    assert deadlocks == 0
    # Each kind came to its turn.
    print(storm.done, storm.refused)
    assert not [
        name
        for name in ("consume", "publish", "reap", "seek", "replay", "purge", "retire_segments()")
        if not storm.done[name]
    ]


def skip_one(session, chance, group):
    partition = chance.randrange(PARTITIONS)
    _epoch, committed, *_ = group.newest(partition, session)
    session.run(*skip_call(committed + chance.randrange(5), partition=partition, dead_letter=chance.random() < 0.5))


def each_dead(session, chance, text):
    for partition in chance.sample(range(PARTITIONS), PARTITIONS):
        offsets = [
            offset
            for (offset,) in session.run(
                'select d."offset" from coordinator.dead_letters d where d.partition = %s limit 20', partition
            )
        ]
        session.run(text, GROUP, partition, offsets)


def trim(session, chance, _state):
    session.run("select coordinator.set_max_dead_letters(%s, %s)", GROUP, chance.choice((5, 1000)))
    session.run("select coordinator.trim_dead_letters()")


def plan(session, group):
    rows = session.run("select s.version, s.members from coordinator.group_state(%s) s", [group.id])
    members = [member["coordinator"] for row in rows for member in row[1]]
    if members:
        session.run(
            "select coordinator.store_plan(%s, %s, %s, %s, %s::uuid[])",
            group.id, rows[0][0], [group.db.topic_id] * PARTITIONS, list(range(PARTITIONS)),
            [members[n % len(members)] for n in range(PARTITIONS)],
        )  # fmt: skip


def test_deletions__against_all_that_locks_claims__nobody_deadlocks(dsn):
    with Db(dsn, partitions=PARTITIONS) as db:
        db.observer.run("select coordinator.alter_topic('t', %s::jsonb)", RETENTION)
        group = TestedGroup(db, count=20)
        storm = Storm(db, group, "delete")
        storm.gone = GONE

        def act(session, chance, state):
            # Group and topic may be others by now.
            session.run("select * from coordinator.create_topic('t', %s)", PARTITIONS)
            group.db.topic_id = session.one("select t.topic_id from coordinator.topics t where t.name = 't'")
            group.id = session.one("select j.group_id from coordinator.join_group(null, %s, array['t']) j", GROUP)
            consume(group)(session, chance, state)

        storm.add("consume", act, 4)
        storm.add("publish", lambda s, c, _: [s.publish(n, c.randrange(PARTITIONS)) for n in range(20)])
        storm.add("reap", lambda s, _c, _s: s.run("select coordinator.reap(3600)"))
        storm.add("seek", lambda s, c, _: s.run(*seek_call("latest", partition=c.randrange(PARTITIONS))))
        storm.add("skip", lambda s, c, _: skip_one(s, c, group))
        storm.add("plan", lambda s, _c, _s: plan(s, group))
        for task in ("rotate_due()", "skip_expired()", "retire_segments()"):
            storm.add(task, lambda s, _c, _s, task=task: s.run(f"select * from coordinator.{task}"))
        storm.add("delete", lambda s, c, _: delete(s, c, "delete_group", GROUP))
        storm.add("delete topic", lambda s, c, _: delete(s, c, "delete_topic", "t"))
        storm.add("remains", lambda s, c, _: delete(s, c, "drop_remains"))
        storm.add("widen", lambda s, c, _: s.run("select coordinator.add_partitions('t', %s)", c.randrange(4, 30)))
        storm.run()
        deadlocks = db.observer.one("select d.deadlocks from pg_stat_database d where d.datname = current_database()")
    print(storm.done, storm.refused)
    assert [f"{name}: {error}" for name, error in storm.failures] == []
    assert deadlocks == 0
    assert not [name for name in ("consume", "delete", "delete topic", "widen") if not storm.done[name]]


def delete(session, chance, function, *names):
    session.run("select pg_sleep(%s)", chance.random() / 5)
    session.run(f"select * from coordinator.{function}({''.join(['%s, true' for _ in names])})", *names)
