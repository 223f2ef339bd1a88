"""Lanes: per key, one message at a time, in the order of offsets; keys in parallel.

A lane exists while something of its key is running, parked, or waiting. Most keys have nothing waiting, so a lane is one
shared constant until it needs to hold something.
"""

from bisect import bisect_left, insort
from collections.abc import Container, Iterable, Iterator
from typing import Final

from coordinator.model import Row

_BUSY: Final = object()


class _Lane:
    """running: a message of the key is handed out, or about to be. held: offsets that wait in the retries table, ascending.

    waiting: rows in memory, in offset order. A row may run when nothing runs and nothing below it is held.
    """

    __slots__ = ("held", "running", "waiting")

    def __init__(self, *, running: bool) -> None:
        self.running = running
        self.held: list[int] = []
        # A list: most have one or two, and to make a deque costs more than to move those.
        self.waiting: list[Row] = []

    def hold(self, offset: int) -> None:
        place = bisect_left(self.held, offset)
        if place == len(self.held) or self.held[place] != offset:
            self.held.insert(place, offset)

    def free_for(self, offset: int) -> bool:
        """Nothing runs, and nothing that waits, in memory or in the table, comes before this offset."""
        return not (
            self.running or (self.held and self.held[0] < offset) or (self.waiting and self.waiting[0][1] < offset)
        )

    def let_go(self, offset: int) -> None:
        place = bisect_left(self.held, offset)
        if place < len(self.held) and self.held[place] == offset:
            del self.held[place]

    def wait(self, row: Row) -> None:
        if not self.waiting or self.waiting[-1][1] < row[1]:
            self.waiting.append(row)
        else:
            insort(self.waiting, row, key=_offset)


class Lanes:
    """The lanes of one claim."""

    __slots__ = ("_lanes", "waiting_count")

    def __init__(self) -> None:
        self._lanes: dict[str, object] = {}
        self.waiting_count = 0

    def enter(self, row: Row) -> bool:
        """Take the lane of a row's key; False if it is taken or blocked: then the row waits there."""
        key = row[4]
        if key is None:
            return True
        lane = self._lanes.get(key)
        if lane is None:
            self._lanes[key] = _BUSY
            return True
        if not isinstance(lane, _Lane):
            lane = self._full(key)
        if lane.free_for(row[1]):
            # A straggler below everything that waits: the message that appeared late need not wait for a later one.
            lane.running = True
            return True
        lane.wait(row)
        self.waiting_count += 1
        return False

    def leave(self, key: str | None) -> Row | None:
        """The running message of a key was settled: return the next, for which the lane is taken again, if there is one."""
        if key is None:
            return None
        lane = self._lanes.get(key)
        if isinstance(lane, _Lane):
            lane.running = False
            return self._next(key, lane)
        self._lanes.pop(key, None)
        return None

    def leave_all(self, keys: Iterable[str | None]) -> list[Row]:
        """`leave` for several, in this order."""
        lanes = self._lanes
        following: list[Row] = []
        for key in keys:
            if key is None:
                continue
            lane = lanes.get(key)
            if not isinstance(lane, _Lane):
                lanes.pop(key, None)
            elif lane.waiting and not lane.held:
                # It goes on running, with the next.
                following.append(lane.waiting.pop(0))
                self.waiting_count -= 1
            else:
                row = self.leave(key)
                if row is not None:
                    following.append(row)
        return following

    def park(self, key: str | None, offset: int) -> Row | None:
        """The running message of a key failed and waits in the table: what comes after it is blocked.

        Returns:
            A straggler that comes before it and has waited for it to end, if there is one: that runs now.
        """
        if key is None:
            return None
        lane = self._full(key)
        lane.running = False
        lane.hold(offset)
        return self._next(key, lane)

    def load(self, parked: Iterable[tuple[int, str | None]]) -> None:
        """Take in what a claim found parked."""
        for offset, key in parked:
            if key is not None:
                self._full(key).hold(offset)

    def unpark(self, row: Row) -> Row | None:
        """A parked message was handed out: return the row that may run now, if any; it waits in its lane otherwise."""
        key = row[4]
        if key is None:
            return row
        lane = self._full(key)
        lane.let_go(row[1])
        lane.wait(row)
        self.waiting_count += 1
        return None if lane.running else self._next(key, lane)

    def unblock(self, key: str | None, offset: int) -> Row | None:
        """A parked message was settled without running again (a late ack): return who runs next, if anybody."""
        if key is None:
            return None
        lane = self._lanes.get(key)
        if not isinstance(lane, _Lane):
            return None
        lane.let_go(offset)
        return None if lane.running else self._next(key, lane)

    def hoarders(self, count: int, parked: Container[int]) -> Iterator[tuple[str, list[Row]]]:
        """Yield lanes that a parked message blocks, those with most waiting first, until `count` rows were yielded.

        All that waits in a lane behind its first parked message goes at once, in offset order, but for what is in the table
        already (it was handed out, and its turn has not come). It has left the memory then, and counts as held.
        """
        blocked = [
            (key, lane)
            for key, lane in self._lanes.items()
            if isinstance(lane, _Lane) and lane.waiting and lane.held and not lane.running
        ]
        for key, lane in sorted(blocked, key=lambda pair: -len(pair[1].waiting)):
            if count <= 0:
                break
            head = lane.held[0]
            rows = [row for row in lane.waiting if row[1] > head and row[1] not in parked]
            if not rows:
                continue
            lane.waiting = [row for row in lane.waiting if row[1] < head or row[1] in parked]
            for row in rows:
                lane.hold(row[1])
            self.waiting_count -= len(rows)
            count -= len(rows)
            yield key, rows

    def take_waiting(self, key: str | None, offset: int) -> bool:
        """Take one row out of a lane, which a late ack has settled."""
        lane = self._lanes.get(key) if key is not None else None
        if isinstance(lane, _Lane):
            for place, row in enumerate(lane.waiting):
                if row[1] == offset:
                    del lane.waiting[place]
                    self.waiting_count -= 1
                    return True
        return False

    def blocked(self) -> list[tuple[str, int]]:
        """Keys that a parked message blocks, with how many wait, in memory or in the table."""
        return [
            (key, len(lane.waiting) + len(lane.held))
            for key, lane in self._lanes.items()
            if isinstance(lane, _Lane) and lane.held
        ]

    def blocked_count(self) -> int:
        """How many keys a parked message blocks; may be asked while another thread changes the lanes."""
        return sum(isinstance(lane, _Lane) and bool(lane.held) for lane in list(self._lanes.values()))

    def rows(self) -> Iterator[Row]:
        """Everything that waits in memory."""
        for lane in self._lanes.values():
            if isinstance(lane, _Lane):
                yield from lane.waiting

    def _next(self, key: str, lane: _Lane) -> Row | None:
        if lane.waiting and not (lane.held and lane.held[0] < lane.waiting[0][1]):
            lane.running = True
            self.waiting_count -= 1
            return lane.waiting.pop(0)
        if not lane.waiting and not lane.held:
            del self._lanes[key]
        return None

    def _full(self, key: str) -> _Lane:
        lane = self._lanes.get(key)
        if not isinstance(lane, _Lane):
            lane = _Lane(running=lane is _BUSY)
            self._lanes[key] = lane
        return lane


def _offset(row: Row) -> int:
    return row[1]
