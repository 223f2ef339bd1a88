"""The heap of deadlines over the deliveries in flight.

A `heapq` of (deadline, serial, delivery) with lazy deletion: a settled or extended delivery leaves a stale entry behind,
which is dropped when it comes up. Lazy deletion alone would keep an entry per message for a whole visibility timeout (at
5,000 messages/s and 30 s that is 150,000 entries where 2,000 deliveries are live), so the heap is rebuilt from the live
entries when it has grown past twice their number and some.

Deliveries that start together have one deadline, and one entry with a list: what is made for each message costs the garbage
collector more than it costs to make.
"""

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from itertools import count

from coordinator.model import Delivery

_SLACK = 1024


class InFlight:
    """Deliveries by deadline; at most `2 * live + 1024` of them, stale ones included, at any time."""

    __slots__ = ("_heap", "_held", "_serial", "live", "live_bytes")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Delivery | list[Delivery]]] = []
        self._held = 0
        self._serial = count()
        self.live = 0
        self.live_bytes = 0

    def __len__(self) -> int:
        """How many deliveries the heap holds, stale ones included."""
        return self._held

    def push(self, delivery: Delivery) -> None:
        """Take in a delivery that starts now. Cost: O(1) when deadlines come in order, else O(log n)."""
        self.live += 1
        self._held += 1
        self.live_bytes += len(delivery.row[7])
        heappush(self._heap, (delivery.deadline_s, next(self._serial), delivery))

    def push_all(self, deliveries: Sequence[Delivery]) -> None:
        """`push` for several that start together: at least one, with one deadline."""
        self.live += len(deliveries)
        self._held += len(deliveries)
        self.live_bytes += sum([len(delivery.row[7]) for delivery in deliveries])
        heappush(self._heap, (deliveries[0].deadline_s, next(self._serial), list(deliveries)))

    def settle_all(self, deliveries: Sequence[Delivery]) -> None:
        """`settle` for several, all of them live."""
        for delivery in deliveries:
            delivery.live = False
        self.live -= len(deliveries)
        self.live_bytes -= sum([len(delivery.row[7]) for delivery in deliveries])
        self._compact()

    def settle(self, delivery: Delivery) -> bool:
        """Take a delivery out; False if it was out already (settled, revoked, or past its deadline)."""
        if not delivery.live:
            return False
        delivery.live = False
        self.live -= 1
        self.live_bytes -= len(delivery.row[7])
        self._compact()
        return True

    def extend(self, delivery: Delivery, deadline_s: float) -> bool:
        """Move a live delivery's deadline; False if it is live no more."""
        if not delivery.live:
            return False
        if deadline_s == delivery.deadline_s:
            return True
        delivery.deadline_s = deadline_s
        self._held += 1
        heappush(self._heap, (deadline_s, next(self._serial), delivery))
        self._compact()
        return True

    def revive(self, delivery: Delivery, deadline_s: float) -> None:
        """Give a delivery that `pop_due` returned a later deadline: its handler is alive."""
        delivery.live = True
        delivery.deadline_s = deadline_s
        self.push(delivery)

    def pop_due(self, now_s: float) -> list[Delivery]:
        """Take out and return the deliveries whose deadline is at or before `now_s`, earliest first."""
        due: list[Delivery] = []
        while self._heap and self._heap[0][0] <= now_s:
            deadline_s, _, entry = heappop(self._heap)
            for delivery in _of(entry):
                self._held -= 1
                if delivery.live and delivery.deadline_s == deadline_s:
                    delivery.live = False
                    self.live -= 1
                    self.live_bytes -= len(delivery.row[7])
                    due.append(delivery)
        if due:
            self._compact()
        return due

    def next_deadline_s(self) -> float | None:
        """The earliest deadline of a live delivery; None when nothing is in flight."""
        while self._heap:
            deadline_s, _, entry = self._heap[0]
            if isinstance(entry, list):
                while entry and not (entry[-1].live and entry[-1].deadline_s == deadline_s):
                    entry.pop()
                    self._held -= 1
                if entry:
                    return deadline_s
            elif entry.live and entry.deadline_s == deadline_s:
                return deadline_s
            else:
                self._held -= 1
            heappop(self._heap)
        return None

    def _compact(self) -> None:
        if self._held > 2 * self.live + _SLACK:
            # By delivery: one that was moved away from a deadline and back to it has two entries that both look right.
            live = {
                id(delivery): delivery
                for deadline_s, _, entry in sorted(self._heap, key=_time_and_serial)
                for delivery in _of(entry)
                if delivery.live and delivery.deadline_s == deadline_s
            }
            # In order, so it is a heap.
            self._heap = [(delivery.deadline_s, next(self._serial), delivery) for delivery in live.values()]
            self._held = len(live)


def _time_and_serial(entry: tuple[float, int, Delivery | list[Delivery]]) -> tuple[float, int]:
    return entry[:2]


def _of(entry: Delivery | list[Delivery]) -> Iterable[Delivery]:
    return entry if isinstance(entry, list) else (entry,)
