"""The heap of deadlines over the deliveries in flight.

A `heapq` of (deadline, serial, delivery) with lazy deletion: a settled or extended delivery leaves a stale entry behind,
which is dropped when it comes up. Lazy deletion alone would keep an entry per message for a whole visibility timeout (at
5,000 messages/s and 30 s that is 150,000 entries where 2,000 deliveries are live), so the heap is rebuilt from the live
entries when it has grown past twice their number and some.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import count

from coordinator.model import Delivery

_SLACK = 1024


class InFlight:
    """Deliveries by deadline; at most `2 * live + 1024` entries at any time."""

    __slots__ = ("_heap", "_serial", "live", "live_bytes")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Delivery]] = []
        self._serial = count()
        self.live = 0
        self.live_bytes = 0

    def __len__(self) -> int:
        """How many entries the heap holds, stale ones included."""
        return len(self._heap)

    def push(self, delivery: Delivery) -> None:
        """Take in a delivery that starts now. Cost: O(1) when deadlines come in order, else O(log n)."""
        self.live += 1
        self.live_bytes += len(delivery.row[7])
        heappush(self._heap, (delivery.deadline_s, next(self._serial), delivery))

    def push_all(self, deliveries: Sequence[Delivery]) -> None:
        """`push` for several."""
        self.live += len(deliveries)
        self.live_bytes += sum([len(delivery.row[7]) for delivery in deliveries])
        heap, serial = self._heap, self._serial
        for delivery in deliveries:
            heappush(heap, (delivery.deadline_s, next(serial), delivery))

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
            deadline_s, _, delivery = heappop(self._heap)
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
            deadline_s, _, delivery = self._heap[0]
            if delivery.live and delivery.deadline_s == deadline_s:
                return deadline_s
            heappop(self._heap)
        return None

    def _compact(self) -> None:
        if len(self._heap) > 2 * self.live + _SLACK:
            # By delivery: one that was moved away from a deadline and back to it has two entries that both look right.
            entries = {id(entry[2]): entry for entry in self._heap if entry[2].live and entry[2].deadline_s == entry[0]}
            self._heap = list(entries.values())
            heapify(self._heap)
