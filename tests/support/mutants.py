"""The protocol broken in one place each; every mutant loses a message in a schedule that the protocol survives.

A mutant is SQL functions with a line changed, or a reader that does its steps in another order.
"""

from collections.abc import Callable
from dataclasses import dataclass

from support import schedules
from support.patches import (
    CEILINGS,
    ENLIST,
    FLOORS,
    READ_AGAIN,
    SETVAL,
    enlist_without_subtransaction,
    gated_gap_pass,
    gated_open_segment,
    gated_publish_many,
    replaced,
    sql_text,
)
from support.reader import Reader
from support.sessions import Db

# The functions as they are, with gates; a mutant's own texts come after them.
GATED = (gated_gap_pass(), gated_publish_many(), gated_open_segment())


class BareCursor(Reader):
    def note_missing(self, lo, hi, offsets):
        pass


class ReadsAhead(Reader):
    """Looks ten offsets past the window; harmless, because V says that they were not handed out."""

    def fetch(self):
        if self.position < self.hwm or self.position == 0:
            hi = self.hwm + 10
            rows = self.read_rows(self.position, hi)
            self.note_missing(self.position, hi, [offset for offset, _ in rows])
            self.position = hi
            self._take(rows)


class StartsBeforeCommit(Reader):
    def before_commit(self, hwm):
        if hwm is not None:
            self.hwm = hwm
            self.fetch()


class BuriesInTwoTransactions(Reader):
    """Settles first, and writes the dead letter in a transaction behind that."""

    def bury(self, offset):
        self.exchange(settled=[(offset, offset + 1)])
        self.after_commit()
        super().bury(offset)


class RepeatableRead(Reader):
    isolation = "repeatable read"


@dataclass(frozen=True)
class Mutant:
    """name: the rule that is broken. schedule: where that shows. patches: SQL texts over the gated ones."""

    name: str
    schedule: Callable[[Db, type[Reader]], None]
    patches: tuple[str, ...] = ()
    reader: type[Reader] = Reader


MUTANTS = (
    Mutant("bare sequence cursor", schedules.late_commit, reader=BareCursor),
    Mutant("locks read after rows", schedules.commit_between_steps_of_a_pass, (gated_gap_pass("VSL"),)),
    Mutant(
        "gap_pass ignores V",
        schedules.publish_after_an_empty_read,
        (replaced(gated_gap_pass(), ("select e.ord, v_highs[e.ord],", "select e.ord, 9223372036854775807,")),),
        ReadsAhead,
    ),
    Mutant(
        "publisher takes its lock after nextval",
        schedules.pass_while_publisher_is_stopped,
        (gated_publish_many((ENLIST, ""), (READ_AGAIN, ENLIST + READ_AGAIN)),),
    ),
    Mutant(
        "publisher takes no lock",
        schedules.late_commit,
        (gated_publish_many((ENLIST, "")),),
    ),
    Mutant(
        "segment not read again after the offsets are taken",
        schedules.rotation_while_publisher_is_stopped,
        (gated_publish_many((READ_AGAIN, "        exit;\n")),),
    ),
    Mutant(
        "exchange without epoch in its check",
        schedules.exchange_under_an_old_epoch,
        (
            replaced(
                sql_text("exchange"), ("c.owner = p_coordinator and c.epoch = w.epoch as", "c.owner = p_coordinator as")
            ),
        ),
    ),
    Mutant(
        "leases by now()",
        schedules.heartbeat_late_in_its_transaction,
        (replaced(sql_text("now_"), ("    select clock_timestamp()", "    select now()")),),
    ),
    Mutant(
        "takeover by a lock as of a plain UPDATE",
        schedules.takeover_while_an_ack_is_under_way,
        (replaced(sql_text("claim"), ("for update of c skip locked", "for no key update of c skip locked")),),
    ),
    Mutant(
        "dead letter in a second transaction",
        schedules.process_dies_when_a_dead_letter_is_committed,
        reader=BuriesInTwoTransactions,
    ),
    Mutant("dispatch before the window commits", schedules.window_is_committed_first, reader=StartsBeforeCommit),
    Mutant(
        "gap_pass at repeatable read without its guard",
        schedules.commit_between_steps_of_a_pass,
        (
            replaced(
                sql_text("require_read_committed"),
                ("current_setting('transaction_isolation') <> 'read committed'", "false"),
            ),
        ),
        RepeatableRead,
    ),
    Mutant(
        "locks belong to the cursor that publishes",
        schedules.cursor_fails_in_a_savepoint,
        (enlist_without_subtransaction(),),
    ),
    Mutant(
        "gap_pass overlooks the topic's lock",
        schedules.publish_to_many_partitions,
        (
            replaced(
                gated_gap_pass(),
                (",\n                                   (coordinator.lock_key(w.topic_id, -1))) as k", ") as k"),
            ),
        ),
    ),
    Mutant(
        "open publishers named by backend",
        schedules.prepare_between_passes,
        (
            replaced(
                gated_gap_pass(),
                (
                    "l.objid::bigint as objid, l.virtualtransaction",
                    "l.objid::bigint as objid, l.pid::text as virtualtransaction",
                ),
            ),
        ),
    ),
    Mutant(
        "floors read after the segment is opened",
        schedules.publish_while_rotation_is_stopped,
        (gated_open_segment((FLOORS, ""), (SETVAL, SETVAL + FLOORS)),),
    ),
    Mutant(
        "ceilings read before the next segment is opened",
        schedules.publish_while_rotation_is_stopped,
        (gated_open_segment((CEILINGS, ""), (SETVAL, CEILINGS + SETVAL)),),
    ),
)


def caught(dsn, mutant):
    """Run a mutant in its schedule, on a database of its own; returns what was lost, or None if it survived."""
    with Db(dsn, patches=(*GATED, *mutant.patches)) as db:
        try:
            mutant.schedule(db, mutant.reader)
        except AssertionError as lost:
            return str(lost).partition("\n")[0] or type(lost).__name__
    return None
