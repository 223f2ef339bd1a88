"""A small client of exchange, fetch and gap_pass, driven step by step; the proof itself is core.gaps."""

import json
from uuid import uuid4

from coordinator.core.gaps import Gaps
from coordinator.core.ranges import compress, merge, subtract, to_text

QUIET_PASSES = 4

GAP_PASS = """
select p.high, p.holders, p."offset", convert_from(p.payload, 'UTF8')
from coordinator.gap_pass(array[%s::int], array[%s::int], array[%s]) p
"""


class Reader:
    """The only member of a group; reads one partition of topic `t` and settles what it was given at once.

    Attributes:
        received: Offsets in the order in which they were handed over.
        burnt: Offsets that were proven rolled back.
        exchange_count: Round trips.
    """

    gaps_class = Gaps
    isolation = "read committed"

    def __init__(self, db, partition=0, group=None, *, topic="t", order="none", want=100, start="earliest"):
        self.db = db
        self.session = db.session()
        self.partition = partition
        self.group = group or f"g{uuid4().hex[:8]}"
        self.want = want
        self.order = order
        self.received = []
        self.values = []
        self.burnt = []
        self.exchange_count = 0
        self.on_delivery = lambda _offset: None
        self.id = uuid4()
        self.session.run("select coordinator.register(%s, 'test', 'here', 1, 60)", self.id)
        self.group_id = self.alone(
            "select j.group_id from coordinator.join_group(%s, %s, %s, %s) j", self.id, self.group, [topic], start
        )
        self.topic_id = self.session.one("select t.topic_id from coordinator.topics t where t.name = %s", topic)
        self.claim()

    def alone(self, text, *parameters):
        """One statement in a transaction of its own, at READ COMMITTED whatever the database's default is."""
        self.session.begin()
        found = self.session.one(text, *parameters)
        self.session.commit()
        return found

    def claim(self):
        """Take the claim, under a new epoch; nothing is remembered of an earlier one."""
        self.epoch, self.seq, self.committed = self.alone(
            "select c.epoch, c.seq, c.committed from coordinator.claim(%s, array[%s::int], array[%s::int], array[%s::int]) c",
            self.id,
            self.group_id,
            self.topic_id,
            self.partition,
        )
        self.position = self.hwm = self.committed
        self.gaps = self.gaps_class()
        self.ready = []
        self.settled = []

    def recover(self):
        """Start again from the newest progress, as after a reconnect."""
        _, self.seq, self.committed, self.hwm = self.alone(
            "select r.status, r.seq, r.committed, r.hwm from coordinator.resolve(%s, %s, %s, %s, %s) r",
            self.id,
            *self._claim(),
        )
        self.position = self.committed
        self.gaps = self.gaps_class()

    def exchange(self, **changed):
        """One exchange in a transaction of its own; returns its status. What it carries may be overridden."""
        given = {
            "epoch": self.epoch,
            "seq": self.seq,
            "settled": self.settled,
            "want": self.want,
            "hard": None,
            **changed,
        }
        with_settled = to_text(merge(given["settled"]))
        self.session.run("begin isolation level read committed")
        status, seq, committed, hwm = self.session.one(
            "select e.status, e.seq, e.committed, e.hwm from coordinator.exchange("
            "%s, array[%s::int], array[%s::int], array[%s::int], array[%s::bigint], array[%s::bigint], array[%s::bigint], "
            "array[%s], array[%s::int], %s) e",
            self.id,
            self.group_id,
            self.topic_id,
            self.partition,
            given["epoch"],
            given["seq"],
            self.hwm,
            with_settled,
            given["want"],
            None if given["hard"] is None else json.dumps([given["hard"]]),
        )
        self.before_commit(hwm)
        self.session.run("commit")
        self.exchange_count += 1
        if status == "ok" and not changed:
            self.seq, self.committed, self.hwm = seq, committed, hwm
            self.settled = []
        return status

    def bury(self, offset):
        """Make a dead letter of what was handed over: it and the settlement are of one transaction."""
        error = {"error": "no", "attempt": 1}
        entry = {"o": 1, "k": "dead", "offset": offset, "key": None, "reason": "rejected", "error": error}
        self.exchange(settled=[], hard={**entry, "attempts": 1, "crashes": 0, "guard": False})
        self.after_commit()

    def after_commit(self):
        """The process may die now."""

    def before_commit(self, hwm):
        """Nothing is handed over before the window is committed."""

    def fetch(self):
        """Read what is new of the window; what is missing is a gap."""
        if self.position >= self.hwm:
            return
        rows = self.read_rows(self.position, self.hwm)
        self.note_missing(self.position, self.hwm, [offset for offset, _ in rows])
        self.position = self.hwm
        self._take(rows)

    def read_rows(self, lo, hi):
        rows = self.session.run(
            "select f.\"offset\", convert_from(f.payload, 'UTF8') from coordinator.fetch(%s, %s, %s, array[%s::bigint], array[%s]) f",
            *self._claim()[:3],
            self.epoch,
            f"{{[{lo},{hi})}}",
        )
        return [(offset, value.strip('"')) for offset, value in rows]

    def note_missing(self, lo, hi, offsets):
        self.gaps.note(list(subtract((lo, hi), compress(offsets))))

    def start_pass(self):
        """What a pass asks; the answer goes to `end_pass`."""
        asked = self.gaps.ranges()
        return asked, (GAP_PASS, self.topic_id, self.partition, to_text(asked))

    def begin_pass(self):
        self.session.run(f"begin isolation level {self.isolation}")

    def end_pass(self, asked, rows):
        self.session.run("commit")
        high, holders = next(row[:2] for row in rows if row[0] is not None)
        appeared = [(row[2], row[3].strip('"')) for row in rows if row[0] is None]
        burnt = self.gaps.on_pass(asked, high, holders, [offset for offset, _ in appeared])
        self.burnt += [offset for lo, hi in burnt for offset in range(lo, hi)]
        self.settled += burnt
        self._take(appeared)

    def gap_pass(self):
        if not self.gaps:
            return
        asked, call = self.start_pass()
        self.begin_pass()
        self.end_pass(asked, self.session.run(*call))

    def poll(self):
        """One round: exchange, fetch, pass."""
        self.exchange()
        self.fetch()
        self.gap_pass()

    def settle_down(self, rounds=QUIET_PASSES):
        """Rounds enough for everything that can be proven now."""
        for _ in range(rounds):
            self.poll()
        return self.received

    def _take(self, rows):
        self.ready = sorted([*self.ready, *rows])
        stable = self.gaps.first
        while self.ready and (self.order == "none" or stable is None or self.ready[0][0] < stable):
            offset, value = self.ready.pop(0)
            self.on_delivery(offset)
            self.received.append(offset)
            self.values.append(value)
            self.settled.append((offset, offset + 1))

    def _claim(self):
        return [self.group_id], [self.topic_id], [self.partition], [self.epoch]
