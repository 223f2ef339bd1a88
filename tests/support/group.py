"""A group at a SQL prompt: its member claims, exchanges and acks by hand, and the tables tell where it stands."""

import json
import uuid

from support.sessions import Db

GROUP = "billing"


class Member:
    """One coordinator of the group on a session of its own, with one partition of topic `t`."""

    def __init__(self, group, session=None, partition=0, lease_s=60):
        self.group = group
        self.db = group.db
        self.session = session or self.db.session()
        self.id = uuid.uuid4()
        self.partition = partition
        self.session.run("select coordinator.register(%s, 'c', 'h', 1, %s)", self.id, lease_s)
        self.session.run("select * from coordinator.join_group(%s, %s, array['t'])", self.id, GROUP)
        self.claim()

    def claim(self):
        """Take the partition; returns the epoch, or None where somebody has it."""
        rows = self.session.run(
            "select c.epoch, c.seq, c.committed from coordinator.claim(%s, %s, %s, %s) c",
            self.id, [self.group.id], [self.db.topic_id], [self.partition],
        )  # fmt: skip
        if rows:
            self.epoch, self.seq, self.hwm = rows[0]
        return rows[0][0] if rows else None

    def exchange_call(self, settled="{}", want=0, hard=None):
        lines = None if hard is None else json.dumps([{"o": 1, **line} for line in hard])
        return (
            "select e.status, e.seq, e.committed, e.hwm from coordinator.exchange(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s::jsonb) e",
            self.id, [self.group.id], [self.db.topic_id], [self.partition], [self.epoch], [self.seq], [self.hwm], [settled], [want],
            lines,
        )  # fmt: skip

    def exchange(self, settled="{}", want=0, hard=None):
        """One exchange; returns its status."""
        status, seq, _, hwm = self.session.one(*self.exchange_call(settled, want, hard))
        if status == "ok":
            self.seq, self.hwm = seq, hwm
        return status

    def park(self, offset, *, key=None, delay_s=0.0):
        return self.exchange(hard=[{
            "k": "retry", "offset": offset, "key": key, "delay_s": delay_s, "running": False, "error": {"error": f"e{offset}"},
        }])  # fmt: skip

    def bury(self, offset):
        return self.exchange(hard=[{
            "k": "dead", "offset": offset, "key": None, "reason": "attempts", "error": {"error": f"d{offset}"}, "attempts": 5,
            "crashes": 0, "guard": False,
        }])  # fmt: skip

    def ack_call(self, offset, replay=0, *, partition=None, epoch=None):
        return (
            "select coordinator.ack(%s, %s, %s, %s, %s, %s, %s)",
            self.id, self.group.id, self.db.topic_id, self.partition if partition is None else partition,
            self.epoch if epoch is None else epoch, [offset], [replay],
        )  # fmt: skip

    # ---- of many partitions; rows begin with partition, epoch, seq, hwm

    def exchange_many(self, rows, *, settled=None, want=0, hard=()):
        return (
            "select e.status, e.seq, e.committed, e.hwm from coordinator.exchange(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s::jsonb) e",
            self.id, *self._arrays(rows), [row[2] for row in rows], [row[3] for row in rows], settled or ["{}"] * len(rows),
            [want] * len(rows), json.dumps(list(hard)) if hard else None,
        )  # fmt: skip

    def release_call(self, rows):
        return ("select coordinator.release(%s, %s, %s, %s, %s)", self.id, *self._arrays(rows))

    def _arrays(self, rows):
        count = len(rows)
        return [self.group.id] * count, [self.db.topic_id] * count, [row[0] for row in rows], [row[1] for row in rows]

    @staticmethod
    def entry(place, kind, offset):
        """One line that is more than an ack."""
        line = {"o": place, "k": kind, "offset": offset, "key": "k", "error": {"error": "e"}}
        more = {"delay_s": 0, "running": False} if kind == "retry" else {
            "reason": "attempts", "attempts": 5, "crashes": 0, "guard": True,
        }  # fmt: skip
        return line | more


class TestedGroup:
    """The group on a database, with `n` messages in partition 0."""

    __test__ = False

    def __init__(self, db: Db, count=10):
        self.db = db
        for number in range(count):
            db.observer.publish(number)
        db.observer.run("select * from coordinator.join_group(null, %s, array['t'])", GROUP)
        self.id = db.observer.one("select g.group_id from coordinator.groups g where g.name = %s", GROUP)

    def member(self, partition=0):
        return Member(self, partition=partition)

    def newest(self, partition=0, session=None):
        """epoch, committed, hwm, done of the newest progress."""
        return (session or self.db.observer).one(
            "select p.epoch, p.committed, p.hwm, p.done::text from coordinator.progress p "
            "where (p.group_id, p.topic_id, p.partition) = (%s, %s, %s) order by p.seq desc limit 1",
            self.id, self.db.topic_id, partition,
        )  # fmt: skip

    def claim_row(self, partition=0):
        """owner, epoch, resets."""
        return self.db.observer.one(
            "select c.owner, c.epoch, c.resets from coordinator.claims c where (c.group_id, c.topic_id, c.partition) = (%s, %s, %s)",
            self.id, self.db.topic_id, partition,
        )  # fmt: skip

    def offsets(self, table):
        return [o for (o,) in self.db.observer.run(f'select x."offset" from coordinator.{table} x order by x."offset"')]

    def skips(self):
        return self.db.observer.run(
            "select s.offsets::text, s.reason, s.note from coordinator.skips s order by s.offsets"
        )


def seek_call(to, offset=None, *, force=True, execute=True, partition=0, time=None, reason="test"):
    return (
        ("select s.from_offset, s.wanted_offset, s.to_offset, s.skipped, s.parked, s.dead_letters, s.members, s.epoch "
        "from coordinator.seek(%s, 't', %s, %s, %s, %s, %s, %s, %s) s"),
        GROUP, partition, to, offset, time, force, execute, reason,
    )  # fmt: skip


def skip_call(offset, *, dead_letter=False, execute=True, partition=0):
    return (
        "select s.state, s.key, s.attempts, s.error, s.epoch from coordinator.skip(%s, 't', %s, %s, %s, %s, 'because') s",
        GROUP, partition, offset, dead_letter, execute,
    )  # fmt: skip
