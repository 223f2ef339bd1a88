"""The heap of deadlines against a model that keeps a list and scans it."""

import random
from collections import deque
from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sizes import FULL

from coordinator.core.inflight import InFlight
from coordinator.model import Delivery, Row

ONE_HOUR_S = 3600


ROW = Row(1, 0, datetime(2026, 1, 1, tzinfo=UTC), UUID(int=1), None, None, None, b"12345")


def delivery(number, deadline_s):
    return Delivery(None, ROW, number, number, 1, deadline_s, started_s=0.0)


class Model:
    """What is live, by number."""

    def __init__(self):
        self.deadlines = {}

    def pop_due(self, now_s):
        due = sorted((deadline_s, number) for number, deadline_s in self.deadlines.items() if deadline_s <= now_s)
        for _, number in due:
            del self.deadlines[number]
        return due


def check(heap, model):
    assert heap.live == len(model.deadlines)
    assert heap.live_bytes == heap.live * len(ROW[7])
    assert len(heap) <= 2 * heap.live + 1024
    assert heap.next_deadline_s() == min(model.deadlines.values(), default=None)
    assert len(heap) <= 2 * heap.live + 1024


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(0, 20)),
        st.tuples(st.just("push_all"), st.integers(0, 20), st.integers(1, 8)),
        st.tuples(st.just("settle"), st.integers(0, 60)),
        st.tuples(st.just("settle_all"), st.integers(1, 3)),
        st.tuples(st.just("extend"), st.integers(0, 60), st.integers(0, 20)),
        st.tuples(st.just("revoke"), st.integers(1, 5)),
        st.tuples(st.just("pass"), st.integers(0, 10)),
    ),
    max_size=60,
)


@settings(deadline=None, max_examples=400)
@given(steps=STEPS, slack=st.sampled_from([0, 1, 8, 1024]))
def test_heap__any_history__equals_the_model(steps, slack):
    """Times are whole numbers, so that deadlines coincide; with a small slack the heap is compacted all the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("coordinator.core.inflight._SLACK", slack)
        heap, model, made, now_s = InFlight(), Model(), [], 0.0
        for step in steps:
            match step:
                case ("push", timeout_s):
                    made.append(delivery(len(made), now_s + timeout_s))
                    heap.push(made[-1])
                    model.deadlines[made[-1].number] = now_s + timeout_s
                case ("push_all", timeout_s, count):
                    together = [delivery(len(made) + number, now_s + timeout_s) for number in range(count)]
                    heap.push_all(together)
                    made += together
                    model.deadlines.update((one.number, one.deadline_s) for one in together)
                case ("settle_all", share):
                    numbers = [number for number in model.deadlines if number % share == 0]
                    heap.settle_all([made[number] for number in numbers])
                    for number in numbers:
                        del model.deadlines[number]
                case ("settle", place) if place < len(made):
                    was_live = model.deadlines.pop(place, None) is not None
                    assert heap.settle(made[place]) == was_live
                case ("extend", place, timeout_s) if place < len(made):
                    assert heap.extend(made[place], now_s + timeout_s) == (place in model.deadlines)
                    if place in model.deadlines:
                        model.deadlines[place] = now_s + timeout_s
                case ("revoke", share):
                    # A claim is dropped: all of its deliveries are taken out.
                    for number in [number for number in model.deadlines if number % share == 0]:
                        assert heap.settle(made[number])
                        del model.deadlines[number]
                case ("pass", seconds):
                    now_s += seconds
                    due = heap.pop_due(now_s)
                    assert [d.deadline_s for d in due] == sorted(d.deadline_s for d in due)
                    assert sorted((d.deadline_s, d.number) for d in due) == model.pop_due(now_s)
                    assert not any(d.live for d in due)
            assert len(heap) <= 2 * heap.live + slack
            check(heap, model)


def test_pop_due__many_stale_entries_behind__keeps_the_bound():
    """What becomes due takes live ones out, so the bound on stale entries sinks with them."""
    heap = InFlight()
    for number in range(1000):
        heap.push(delivery(number, 1.0))
    late = [delivery(1000 + number, 2.0) for number in range(2000)]
    for one in late:
        heap.push(one)
    for one in late:
        heap.settle(one)
    assert len(heap.pop_due(1.0)) == 1000
    assert len(heap) <= 1024


def test_extend__to_the_same_deadlines_again_and_again__keeps_the_bound():
    heap = InFlight()
    one = delivery(1, 1.0)
    heap.push(one)
    for turn in range(5000):
        heap.extend(one, 2.0 + turn % 2)
        assert len(heap) <= 2 * heap.live + 1024
    heap.extend(one, 3.0)
    assert heap.pop_due(5.0) == [one]
    assert heap.pop_due(9.0) == []


def test_an_hour_at_5000_messages_a_second__entries_stay_within_twice_the_live_and_some():
    """A visibility timeout of 30 s, handlers that take 0.4 s; some extend, some never settle.

    Of each second the first tenth is played, 500 messages 0.2 ms apart: the rate, the clock and the deadlines are real. All of
    it with COORDINATOR_TEST_FULL.
    """
    played = 5000 if FULL else 500
    seed = 20260801
    print(f"seed {seed}")
    chance = random.Random(seed)
    heap = InFlight()
    running = deque()
    number = never_settled = due_count = most_entries = most_live = 0
    for second in range(ONE_HOUR_S):
        for turn in range(played):
            now_s = second + turn / 5000
            while running and running[0][0] <= now_s:
                heap.settle(running.popleft()[1])
            one = delivery(number, now_s + 30.0)
            number += 1
            heap.push(one)
            if number % 5000 == 0:
                never_settled += 1
                continue
            if chance.random() < 0.01:
                heap.extend(one, one.deadline_s + 60.0)
            running.append((now_s + 0.4, one))
            assert len(heap) <= 2 * heap.live + 1024
        most_entries, most_live = max(most_entries, len(heap)), max(most_live, heap.live)
        due_count += len(heap.pop_due(now_s))
        assert len(heap) <= 2 * heap.live + 1024
    assert number == ONE_HOUR_S * played
    for _, one in running:
        heap.settle(one)
    due_count += len(heap.pop_due(now_s + 30.0))
    assert due_count == never_settled
    print(f"{number} messages, at most {most_entries} entries, {most_live} of them live")
    # Without compaction it would be the messages of 30 seconds, 15,000 of those played.
    assert most_entries < 6 * played
