"""One claim in its owner's memory: what was read, what is in flight, what waits to be written."""

from collections import deque
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from coordinator.core.gaps import Gaps
from coordinator.core.ordering import Lanes
from coordinator.core.ranges import Range, compress, contains, merge, subtract
from coordinator.core.subscription import Subscription
from coordinator.core.window import Window
from coordinator.model import Claim, Crash, Delivery, Facts, PartitionKey, Row, Source

# The kinds of entries that cost a row each, with its error history.
FAILURES = ("retry", "dead")
# One line of what is more than an ack, for settle_hard; k is its kind.
Entry: TypeAlias = dict[str, Any]

_DUE_MARGIN_S = 60.0


@dataclass(slots=True)
class Failing:
    """A message whose failure is not known to be written yet.

    acked: A late ack came after the failure was sent. refused: Why it could not be stored as a dead letter, and is tried again.
    """

    row: Row
    entry: Entry
    facts: Facts
    acked: bool = False
    refused: str | None = None


class Partition:
    """The owner's copy of a claim. The tables decide; all this can be rebuilt from them.

    Attributes:
        committed, hwm, seq: The newest progress whose COMMIT is known.
        position: Every offset of the window below it was read, found missing, or was done before.
        done: Ranges at or above `committed` that were settled before this ownership began, or before a reconnect.
        ready: Read and not handed over, in offset order.
        urgent: To be started before those: redeliveries, retries that are due, successors of a settled key.
        in_flight: The newest delivery of each message that is handed over and not settled, by offset.
        failing: Failed, and the failure not known to be written.
        parked: Everything in the retries table, with its key. handed: the part of it that is in memory, to run.
        facts: What is known of messages that are not fresh.
        settled: Offsets to be written with the next exchange. unsent: ranges to be written with it, which are proven gaps
            and what an earlier exchange did not write. hard: what is more than an ack.
        sent, sent_hard: What the exchange under way, or one of unknown outcome, carries.
        uncertain: An exchange's outcome is not known; nothing starts until it is.
        refused: Dead letters that could not be stored; nothing advances over them, and they are sent again later.
        revoking: To be released as soon as nothing is in flight.
        paused: An operator has said so: nothing is fetched or handed over; what runs is finished and settled.
        barren: The last read found nothing but gaps.
        lost: Owned by somebody else; settling calls are refused. cut_off: Before everything settled was known to be durable.
        busy_until_s: Somebody holds the claim's row: it is left alone until then.
        given_back: Taken back while the claim is revoked; an ack is still taken until it is released.
        ahead: Handed out of the parked, but this epoch has not read up to them yet: what is before them may be open (R18).
        due_at_s: When the next of the parked is due. due_from_s: none of them is due before; due_looked_s: all were looked at.
        aside: The offset of the message that waits to run alone.
        sent_count: What `saved_count` is to be when the exchange under way is known to be written.
        unproven: An exchange was found not to be written, and nothing has been written since: it may still be carried out.
        exposed: Such an exchange takes the window back: nothing starts until something was written that it can't come after.
        replayed: How often parked messages were replayed that were a dead letter before: runs from before that are over.
        runs: Transactional runs that are alive, by offset. unfolded: acked in a transaction, the acks row is still there.
    """

    __slots__ = (
        "ahead",
        "aside",
        "barren",
        "busy_until_s",
        "check_parked",
        "committed",
        "crashes",
        "cut_off",
        "done",
        "due_at_s",
        "due_from_s",
        "due_looked_s",
        "exposed",
        "facts",
        "failing",
        "gaps",
        "given_back",
        "handed",
        "hard",
        "high",
        "hold_until_s",
        "holes",
        "hwm",
        "in_flight",
        "key",
        "lanes",
        "lost",
        "parked",
        "paused",
        "position",
        "queued",
        "ready",
        "recovering",
        "refused",
        "refused_until_s",
        "replayed",
        "revoking",
        "runs",
        "saved_count",
        "sent",
        "sent_count",
        "sent_hard",
        "seq",
        "settled",
        "settled_count",
        "source",
        "subscription",
        "uncertain",
        "unfolded",
        "unproven",
        "unsent",
        "unwritten_count",
        "urgent",
        "window",
    )

    def __init__(self, claim: Claim, source: Source, subscription: Subscription, window: Window) -> None:
        self.key: PartitionKey = claim.key
        self.source = source
        self.subscription = subscription
        self.seq = claim.seq
        self.committed = claim.committed
        self.hwm = claim.committed
        self.position = claim.committed
        self.high = -1
        self.holes = len(claim.done)
        self.done: list[Range] = list(claim.done)
        self.crashes: tuple[Crash, ...] = claim.crashes
        self.window = window
        self.gaps = Gaps()
        self.lanes = Lanes()
        self.ready: deque[Row] = deque()
        self.urgent: deque[Row] = deque()
        self.in_flight: dict[int, Delivery] = {}
        self.failing: dict[int, Failing] = {}
        # Of these, what can be written: not refused.
        self.unwritten_count = 0
        self.parked: dict[int, str | None] = dict(claim.parked)
        self.handed: set[int] = set()
        self.facts: dict[int, Facts] = {}
        self.settled: list[int] = []
        self.unsent: list[Range] = []
        self.hard: list[Entry] = []
        self.sent: list[Range] | None = None
        self.sent_hard: list[Entry] = []
        self.refused: list[Entry] = []
        self.refused_until_s = 0.0
        self.sent_count = 0
        self.unproven = False
        self.exposed = False
        self.ahead: list[Row] = []
        self.aside: int | None = None
        self.settled_count = 0
        self.saved_count = 0
        self.uncertain = False
        self.recovering = False
        self.barren = False
        self.revoking = False
        self.paused = False
        self.lost = False
        self.cut_off = False
        self.queued = False
        self.check_parked = bool(claim.parked)
        self.due_at_s = float("inf")
        self.due_from_s = 0.0
        self.due_looked_s = float("-inf")
        self.hold_until_s = 0.0
        self.busy_until_s = 0.0
        self.given_back: set[int] = set()
        self.replayed: dict[int, int] = {}
        self.runs: dict[int, list[Delivery]] = {}
        self.unfolded: set[int] = set()
        if subscription.by_key:
            self.lanes.load(claim.parked)

    @property
    def epoch(self) -> int:
        return self.source.epoch

    @property
    def holds_unsaved(self) -> bool:
        """Something was settled, or failed, that no known COMMIT carries."""
        return bool(self.settled or self.unsent or self.sent or self.hard or self.sent_hard)

    @property
    def busy(self) -> bool:
        """A message is handed over, or failed and not written."""
        return bool(self.in_flight or self.failing)

    def want(self, max_holes: int, max_parked: int) -> int:
        """By how many offsets the window may grow now: nothing before a bound, a release, or an unread rest.

        A little room is none: to read a few messages costs a partition's scan, too.
        """
        if self.revoking or self.paused or self.uncertain or self.lost or self.position < self.hwm:
            return 0
        if self.at_bound(max_holes, max_parked):
            return 0
        if self.lanes.waiting_count >= self.window.max_waiting:
            return 0
        # A gap is a message that may appear any moment: a large open transaction must not flood the reader when it commits.
        missing = self.gaps.size
        buffered = len(self.ready) + len(self.urgent)
        if self.crashes:
            # Everything open is charged with the next crash: so that there is less of it, what runs counts, too. Else it does
            # not: who gathers many messages before he acks the first would get no more, long before max_in_flight.
            buffered += len(self.in_flight)
        if self.crashes or self.subscription.one_at_a_time:
            buffered += missing
        size = self._goal
        room = size - buffered
        if not self.subscription.one_at_a_time:
            # What is open is not waited for: so it does not use up the window, as it would in moments.
            room = min(room, self.window.max_missing - missing)
        return room if 4 * room >= size else 0

    @property
    def _goal(self) -> int:
        """How many messages are to be in hand."""
        # Where a read has found nothing but gaps, the handlers' speed says nothing: a rolled-back load is to be passed quickly.
        return self.window.max_waiting if self.barren and not self.in_flight else self.window.size

    @property
    def runs_low(self) -> bool:
        """At least a quarter of what the window may hold was handed over: the rest may be gone within a round trip."""
        return 4 * len(self.ready) <= 3 * self.window.size

    def at_bound(self, max_holes: int, max_parked: int) -> bool:
        """Holes, gaps or parked messages are at their bound: nothing more is read.

        What lies between ranges of done is: an earlier owner has been there, it makes no more of them, and without it a
        claim that is taken at the bound could never leave it.
        """
        if len(self.gaps) >= max_holes:
            return True
        return (self.holes >= max_holes or len(self.parked) >= max_parked) and not (
            self.done and self.position < self.done[-1][1]
        )

    def stopped_by(self, max_holes: int, max_parked: int) -> str:
        """What keeps this owner from reading on: "open transactions", "unsettled" or "parked"; empty where nothing does."""
        stable = self.gaps.first
        if self.subscription.one_at_a_time:
            # It reads on for a while, but starts nothing.
            open_ones = stable is not None and not (self.ready and self.ready[0][1] < stable)
        else:
            most = self._goal if self.crashes else self.window.max_missing
            open_ones = 4 * (most - self.gaps.size) < self._goal
        if open_ones or len(self.gaps) >= max_holes:
            return "open transactions"
        if not self.at_bound(max_holes, max_parked):
            return ""
        return "parked" if len(self.parked) >= max_parked else "unsettled"

    def may_start(self) -> bool:
        """Tell whether `ready` or `urgent` has something that order and state allow to start."""
        if self.uncertain or self.revoking or self.paused or self.lost or self.recovering or self.exposed:
            return False
        if not self.subscription.one_at_a_time:
            # A claim that somebody has locked for a while must not use up what all may have in flight.
            return bool(self.urgent or self.ready) and self.unwritten_count < max(self.window.max_size // 2, 1)
        if self.in_flight or self.failing:
            return False
        if self.urgent:
            return self.first_urgent() is not None
        if not self.ready or self.parked:
            return False
        stable = self.gaps.first
        return stable is None or self.ready[0][1] < stable

    def first_urgent(self) -> Row | None:
        """The row of `urgent` that is to start next; None while one before it waits in the table, where order forbids that.

        A batch may have failed or been given back as a whole: in partition order it comes again in the order of offsets.
        """
        if not self.subscription.one_at_a_time:
            return self.urgent[0]
        row = min(self.urgent, key=_offset)
        return None if any(offset < row[1] for offset in self.parked) else row

    def due_age_s(self, now_s: float) -> float | None:
        """How long ago may have become due what is to be looked for among the parked; None: all is to be looked at.

        Before that is nothing but what has gone: an index keeps it for as long as somebody holds an old snapshot, and each look
        would pass over all of it. Others put something there at their own time, which is before their commit: so a minute
        more than needed, and all of it once a minute.
        """
        if self.check_parked or now_s >= self.due_looked_s + _DUE_MARGIN_S:
            return None
        return now_s - self.due_from_s + _DUE_MARGIN_S

    def on_due_looked_at(self, next_s: float, all_s: float | None) -> None:
        """Nothing waits that is due before `next_s`. `all_s`: when all of it was looked at, if it was."""
        self.due_from_s = next_s
        if all_s is not None:
            self.due_looked_s = all_s

    def charge(self, row: Row) -> Facts | None:
        """What is known of a row: facts from the retries table, or the crash rows that cover it."""
        known = self.facts.get(row[1])
        if known is not None or not self.crashes:
            return known
        covering = [crash for crash in self.crashes if contains(crash.offsets, row[1])]
        return Facts(crashes=len(covering), alone=covering[0].alone) if covering else None

    def pick(self, max_count: int, max_bytes: int) -> list[Row]:
        """Take what may start, `urgent` first, entering lanes; the row that crosses `max_bytes` is the last."""
        urgent, ready = self.urgent, self.ready
        picked: list[Row] = []
        enter = self.lanes.enter if self.subscription.by_key else None
        while max_count > 0 and max_bytes > 0:
            if urgent:
                row = urgent.popleft()
            elif not ready:
                break
            else:
                row = ready.popleft()
                if enter is not None and not enter(row):
                    continue
            picked.append(row)
            max_count -= 1
            max_bytes -= len(row[7])
        return picked

    def settle_all(self, deliveries: Sequence[Delivery]) -> None:
        """Take fresh messages out of what is in flight, to be written as settled with the next exchange."""
        offsets = [delivery.offset for delivery in deliveries]
        in_flight = self.in_flight
        for offset in offsets:
            del in_flight[offset]
        if self.subscription.by_key:
            self.urgent.extend(self.lanes.leave_all([delivery.row[4] for delivery in deliveries]))
        self.settled += offsets
        self.settled_count += len(offsets)

    def next_settled(self) -> list[Range]:
        """Move what is to be settled into `sent` and return it."""
        self.sent_count = self.settled_count
        self.subscription.counts.acked += len(self.settled)
        ranges = compress(self.settled)
        if self.unsent:
            ranges = merge(ranges, self.unsent)
        self.settled = []
        self.unsent = []
        self.sent = ranges
        return ranges

    def next_hard(self, max_failures: int) -> int:
        """Move what is more than an ack into `sent_hard`, in order, up to so many failures; returns how many of these."""
        failures, end = 0, len(self.hard)
        for place, entry in enumerate(self.hard):
            if entry["k"] in FAILURES:
                if failures == max_failures:
                    end = place
                    break
                failures += 1
        self.sent_hard, self.hard = self.hard[:end], self.hard[end:]
        if self.hard:
            # Not before the rest is written is everything written.
            self.sent_count = self.saved_count
        return failures

    def on_saved(self, seq: int, committed: int, hwm: int, settled_count: int) -> None:
        """An exchange is known to have committed; `settled_count` is the count it carried everything up to."""
        self.seq, self.committed, self.hwm = seq, committed, hwm
        self.unproven = self.exposed = False
        # What was done above the window before this ownership may carry the committed offset past what was read.
        self.position = max(self.position, committed)
        self.saved_count = settled_count
        self.sent = None
        if self.done and self.done[0][1] <= committed:
            self.done = [(lo, hi) for lo, hi in self.done if hi > committed]

    def on_not_saved(self) -> None:
        """An exchange is known not to have written: what it carried goes with the next one."""
        if self.sent:
            self.unsent = merge(self.unsent, self.sent)
        self.sent = None
        self.hard = self.sent_hard + self.hard
        self.sent_hard = []

    def on_read(self, rows: Sequence[Row]) -> None:
        """Take in a read of [position, hwm): rows are in offset order; what is missing is a gap."""
        if self.position >= self.hwm:
            return
        if self.recovering:
            held = self._held()
            rows = [row for row in rows if not contains(held, row[1])]
        lo, hi = self.position, self.hwm
        self.barren = not rows
        if rows and rows[-1][1] >= hi:
            # An earlier exchange was carried out late and has raised the window; the next one will be told that it is stale.
            rows = [row for row in rows if row[1] < hi]
        self.ready.extend(rows)
        if rows:
            self.window.on_read(len(rows), sum(len(row[7]) for row in rows))
        if len(rows) != hi - lo:
            known = merge(self.done, compress(row[1] for row in rows), self._held() if self.recovering else [])
            self.gaps.note(list(subtract((lo, hi), known)))
        self.position = hi
        if self.recovering:
            self.recovering = False
            self.ready = deque(sorted(self.ready, key=_offset))

    def on_appeared(self, rows: Iterable[Row]) -> None:
        """Take in stragglers: rows below the position that were gaps until now."""
        fresh = list(rows)
        if fresh:
            self.ready = deque(sorted([*fresh, *self.ready], key=_offset))

    def recover(self, seq: int, committed: int, hwm: int, done: Sequence[Range], acked: Sequence[Range]) -> None:
        """Start again from the newest progress after a reconnect; what is held in memory is kept.

        The answer of an exchange may be lost after its COMMIT: then a window exists whose rows were never received. All
        of [committed, hwm) is read again, and what is not held already is taken in; nothing of a window is forgotten.
        """
        self.seq, self.committed, self.hwm = seq, committed, hwm
        self.done = merge(done, acked)
        self.holes = len(done)
        self.position = committed
        self.recovering = committed < hwm and not self.revoking
        self.uncertain = False
        self.check_parked = True
        self.gaps = Gaps()
        for lo, hi in acked:
            for offset in range(lo, hi):
                if offset not in self.in_flight and offset not in self.unfolded:
                    self.unsent = merge(self.unsent, [(offset, offset + 1)])
                    self.unfolded.add(offset)

    def forget_unstarted(self) -> None:
        """Drop from memory what was not handed over, as after a claim; it is read again."""
        self.ready.clear()
        self.urgent.clear()
        self.ahead.clear()
        self.aside = None
        self.lanes = Lanes()
        # Acked late, and not written: as if their rows were gone already.
        cleared = {entry["offset"] for entry in (*self.sent_hard, *self.hard) if entry["k"] == "clear"}
        self.handed = cleared & self.parked.keys()
        self.facts.clear()
        if self.subscription.by_key:
            self.lanes.load((offset, key) for offset, key in self.parked.items() if offset not in cleared)
            for entry in self.hard:
                if entry["k"] == "behind":
                    self.lanes.load((offset, entry["key"]) for offset in entry["offsets"])

    def enter_lanes(self, keys: Container[str | None]) -> None:
        """Put what is read of these keys into its lanes now, so that they know who comes first."""
        rest: deque[Row] = deque()
        for row in self.ready:
            if row[4] not in keys:
                rest.append(row)
            elif self.lanes.enter(row):
                self.urgent.append(row)
        self.ready = rest

    def _held(self) -> list[Range]:
        """Offsets that are in memory, or on their way to the table."""
        rows = [*self.ready, *self.urgent, *self.lanes.rows()]
        offsets = [*(row[1] for row in rows), *self.in_flight, *self.failing, *self.parked, *self.settled]
        if self.aside is not None:
            offsets.append(self.aside)
        behind = [offset for entry in self.hard if entry["k"] == "behind" for offset in entry["offsets"]]
        return merge(compress([*offsets, *behind]), self.unsent, self.sent or [])


def _offset(row: Row) -> int:
    return row[1]
