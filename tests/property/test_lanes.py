"""Lanes against a model that only knows sets: per key one at a time, in order of offsets, and nothing is ever lost."""

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.core.ordering import Lanes
from coordinator.model import Row

KEYS = ("a", "b", None)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["read", "read", "straggler", "ack", "ack", "park", "due", "late ack", "hoard", "late waiting"]
        ),
        st.integers(0, 1000),
    ),
    max_size=60,
)


def row_of(offset, key):
    return Row(1, offset, None, None, key, None, None, b"")


class World:
    """What the engine does with its lanes. Every unsettled message is in just one of the sets."""

    def __init__(self):
        self.lanes = Lanes()
        self.running = {}
        self.waiting = {}
        self.parked = {}
        self.handed = set()
        self.settled = []
        self.next_offset = 0

    def unsettled(self, key):
        return [o for held in (self.running, self.waiting, self.parked) for o, r in held.items() if r.key == key]

    def start(self, row):
        if row is None:
            return
        self.waiting.pop(row.offset, None)
        if row.key is not None:
            assert all(other.key != row.key for other in self.running.values()), "one at a time per key"
            lower = [offset for offset in self.unsettled(row.key) if offset < row.offset]
            assert not lower, f"{row.offset} starts before {lower}"
        self.running[row.offset] = row

    def read(self, offset, key):
        row = row_of(offset, key)
        if self.lanes.enter(row):
            self.start(row)
        else:
            self.waiting[offset] = row

    def step(self, name, number):
        getattr(self, name.replace(" ", "_") + "_step")(number)
        self.check()

    def read_step(self, number):
        self.next_offset += 1 + number % 2
        self.read(self.next_offset, KEYS[number % 3])

    def straggler_step(self, number):
        offset = number % (self.next_offset + 1)
        known = {*self.running, *self.waiting, *self.parked, *self.settled}
        if offset not in known:
            self.read(offset, KEYS[number % 3])

    def pick(self, of, number):
        return of.pop(sorted(of)[number % len(of)]) if of else None

    def ack_step(self, number):
        row = self.pick(self.running, number)
        if row is not None:
            self.settled.append(row.offset)
            self.handed.discard(row.offset)
            self.start(self.lanes.leave(row.key))

    def park_step(self, number):
        row = self.pick(self.running, number)
        if row is not None:
            self.parked[row.offset] = row
            self.handed.discard(row.offset)
            self.start(self.lanes.park(row.key, row.offset))

    def due_step(self, number):
        row = self.pick(self.parked, number)
        if row is not None:
            self.handed.add(row.offset)
            self.waiting[row.offset] = row
            self.start(self.lanes.unpark(row))

    def late_ack_step(self, number):
        row = self.pick(self.parked, number)
        if row is not None:
            self.settled.append(row.offset)
            self.start(self.lanes.unblock(row.key, row.offset))

    def late_waiting_step(self, number):
        row = self.pick(self.waiting, number)
        if row is not None:
            self.settled.append(row.offset)
            self.handed.discard(row.offset)
            assert self.lanes.take_waiting(row.key, row.offset)

    def hoard_step(self, number):
        for key, rows in self.lanes.hoarders(1 + number % 5, self.handed):
            offsets = [row.offset for row in rows]
            assert offsets == sorted(offsets)
            head = min(offset for offset, row in self.parked.items() if row.key == key)
            assert offsets[0] > head, "who waits behind a head comes after it: nobody wakes what is before"
            for row in rows:
                assert row.key == key
                assert row.offset not in self.handed, "what is in the table already is not parked once more"
                self.parked[row.offset] = self.waiting.pop(row.offset)

    def check(self):
        assert sorted(row.offset for row in self.lanes.rows()) == sorted(self.waiting)
        assert self.lanes.waiting_count == len(self.waiting)
        for key, _ in self.lanes.blocked():
            assert any(row.key == key for row in self.parked.values())


@settings(max_examples=400, deadline=None)
@given(STEPS)
def test_lanes__any_history__keep_the_order_of_keys_and_lose_nothing(steps):
    world = World()
    for name, number in steps:
        world.step(name, number)
    read = {*world.running, *world.waiting, *world.parked, *world.settled}
    for _ in range(4 * len(read) + 4):
        world.step("due", 0)
        world.step("ack", 0)
    assert (world.running, world.waiting, world.parked) == ({}, {}, {})
    assert sorted(world.settled) == sorted(read)
    assert world.lanes._lanes == {}


@given(st.permutations(range(6)))
def test_load__parked_before_the_takeover__come_back_in_order_whatever_is_due_first(due):
    """What a claim finds parked blocks its key, in the table or in memory, until it has been settled."""
    lanes = Lanes()
    lanes.load((offset, "k") for offset in range(6))
    assert not lanes.enter(row_of(9, "k"))
    handled, running = [], None
    for offset in due:
        running = lanes.unpark(row_of(offset, "k")) or running
        while running is not None:
            handled.append(running.offset)
            running = lanes.leave("k")
    assert handled == [0, 1, 2, 3, 4, 5, 9]
