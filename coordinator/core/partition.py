"""One claim in its owner's memory: what was read, what is in flight, what waits to be written."""

from collections import deque
from collections.abc import Iterable, Sequence

from coordinator.core.gaps import Gaps
from coordinator.core.ranges import Range, compress, merge, subtract
from coordinator.core.window import Window
from coordinator.model import Claim, Delivery, PartitionKey, Row, Source


class Partition:
    """The owner's copy of a claim. The tables decide; all this can be rebuilt from them.

    Attributes:
        committed, hwm, seq: The newest progress whose COMMIT is known.
        position: Every offset of the window below it was read, found missing, or was done before.
        done: Ranges at or above `committed` that were settled before this ownership began, or before a reconnect.
        ready: Read and not handed over, in offset order.
        in_flight: The newest delivery of each message that is handed over and not settled, by offset.
        settled: Offsets to be written with the next exchange. unsent: ranges to be written with it, which are proven gaps
            and what an earlier exchange did not write.
        sent: What the exchange under way, or one of unknown outcome, carries.
        uncertain: An exchange's outcome is not known; nothing starts until it is.
        revoking: To be released as soon as nothing is in flight.
        lost: Owned by somebody else; settling calls are refused.
    """

    __slots__ = (
        "committed",
        "done",
        "gaps",
        "high",
        "hwm",
        "in_flight",
        "key",
        "lost",
        "position",
        "queued",
        "ready",
        "recovering",
        "revoking",
        "saved_count",
        "sent",
        "seq",
        "settled",
        "settled_count",
        "source",
        "starts",
        "subscription",
        "uncertain",
        "unsent",
        "window",
    )

    def __init__(self, claim: Claim, source: Source, subscription: object, window: Window) -> None:
        self.key: PartitionKey = claim.key
        self.source = source
        self.subscription = subscription
        self.seq = claim.seq
        self.committed = claim.committed
        self.hwm = claim.committed
        self.position = claim.committed
        self.high = -1
        self.done: list[Range] = list(claim.done)
        self.window = window
        self.gaps = Gaps()
        self.ready: deque[Row] = deque()
        self.in_flight: dict[int, Delivery] = {}
        self.starts: dict[int, int] = {}
        self.settled: list[int] = []
        self.unsent: list[Range] = []
        self.sent: list[Range] | None = None
        self.settled_count = 0
        self.saved_count = 0
        self.uncertain = False
        self.recovering = False
        self.revoking = False
        self.lost = False
        self.queued = False

    @property
    def epoch(self) -> int:
        return self.source.epoch

    @property
    def holds_unsaved(self) -> bool:
        """Something was settled that no known COMMIT carries."""
        return bool(self.settled or self.unsent or self.sent)

    def want(self, max_holes: int) -> int:
        """By how many offsets the window may grow now: nothing before a bound, a release, or an unread rest."""
        if self.revoking or self.uncertain or self.lost or self.position < self.hwm or len(self.gaps) >= max_holes:
            return 0
        buffered = len(self.ready) + len(self.in_flight)
        return self.window.size - buffered if 2 * len(self.ready) <= self.window.size else 0

    def next_settled(self) -> list[Range]:
        """Move what is to be settled into `sent` and return it."""
        ranges = compress(self.settled)
        if self.unsent:
            ranges = merge(ranges, self.unsent)
        self.settled = []
        self.unsent = []
        self.sent = ranges
        return ranges

    def on_saved(self, seq: int, committed: int, hwm: int, settled_count: int) -> None:
        """An exchange is known to have committed; `settled_count` is the count it carried everything up to."""
        self.seq, self.committed, self.hwm = seq, committed, hwm
        self.saved_count = settled_count
        if self.recovering and self.sent:
            # The read behind this COMMIT does not return them, and they must not look like gaps to it.
            self.done = merge(self.done, self.sent)
        self.sent = None
        if self.done and self.done[0][1] <= committed:
            self.done = [(lo, hi) for lo, hi in self.done if hi > committed]

    def on_not_saved(self) -> None:
        """An exchange is known not to have written: what it carried goes with the next one."""
        if self.sent:
            self.unsent = merge(self.unsent, self.sent)
        self.sent = None

    def on_read(self, rows: Sequence[Row]) -> None:
        """Take in a read of [position, hwm): rows are in offset order; what is missing is a gap."""
        if self.position >= self.hwm:
            return
        if self.recovering:
            rows = self._unknown(rows)
        # A recovery reads from the committed offset as it was, and the exchange may have moved that.
        lo, hi = max(self.position, self.committed), self.hwm
        self.ready.extend(rows)
        if len(rows) != hi - lo:
            known = merge(self.done, compress(row[1] for row in rows), self._known())
            self.gaps.note(list(subtract((lo, hi), known)))
        self.position = hi
        if self.recovering:
            self.recovering = False
            self.ready = deque(sorted(self.ready, key=lambda row: row[1]))

    def on_appeared(self, rows: Iterable[Row]) -> None:
        """Take in stragglers: rows below the position that were gaps until now."""
        fresh = list(rows)
        if fresh:
            self.ready = deque(sorted([*fresh, *self.ready], key=lambda row: row[1]))

    def give_back(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Return deliveries to the head of the ready queue; those that were settled, or handed over anew, are left out."""
        back = [delivery for delivery in deliveries if self.in_flight.get(delivery.offset) is delivery]
        for delivery in back:
            del self.in_flight[delivery.offset]
            self.starts[delivery.offset] = delivery.attempt
        if back and not self.revoking:
            self.ready.extendleft(sorted((delivery.row for delivery in back), key=lambda row: -row[1]))
            if len(self.ready) > len(back) and self.ready[len(back)][1] < self.ready[len(back) - 1][1]:
                self.ready = deque(sorted(self.ready, key=lambda row: row[1]))
        return back

    def recover(self, seq: int, committed: int, hwm: int, done: Sequence[Range]) -> None:
        """Start again from the newest progress after a reconnect; what is held in memory is kept.

        The answer of an exchange may be lost after its COMMIT: then a window exists whose rows were never received. All
        of [committed, hwm) is read again, and what is not held already is taken in; nothing of a window is forgotten.
        """
        self.seq, self.committed, self.hwm = seq, committed, hwm
        self.done = list(done)
        self.position = committed
        self.recovering = True
        self.uncertain = False
        self.gaps = Gaps()

    def _known(self) -> list[Range]:
        if not self.recovering:
            return []
        held = [row[1] for row in self.ready]
        return merge(compress([*held, *self.in_flight, *self.settled]), self.unsent, self.sent or [])

    def _unknown(self, rows: Sequence[Row]) -> list[Row]:
        known = self._known()
        covered = {row[1] for row in self.ready} | self.in_flight.keys() | set(self.settled)
        return [row for row in rows if row[1] not in covered and not any(lo <= row[1] < hi for lo, hi in known)]
