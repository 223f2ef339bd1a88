"""What may overtake what when messages fail, and how many run at once: ordering key, partition and none."""

import asyncio
import collections
import itertools
import threading
import time

import pytest
from support.ledger import Recorder, dead, failing, parked, wait_settled
from support.shell import TOPIC, committed, wait_until

from coordinator import Coordinator, Outgoing


def by_key(values, keys):
    return [Outgoing(value, str(value % keys)) for value in values]


def starts_by(seen, place):
    """Values in the order of their starts, per key or partition."""
    found = collections.defaultdict(list)
    for one in sorted(seen, key=lambda one: one.started_s):
        found[getattr(one, place)].append(one)
    return found


def check_order(seen, place):
    """I10: in each lane the starts are by offset, the next after the one before has ended for good; attempts in one run."""
    for lane in starts_by(seen, place).values():
        offsets = [one.offset for one in lane]
        assert offsets == sorted(offsets)
        for earlier, later in itertools.pairwise(lane):
            assert later.started_s >= earlier.ended_s
            if later.offset == earlier.offset:
                assert later.attempt > earlier.attempt


@pytest.mark.parametrize("concurrency", [1, 8])
def test_key__failing_again_and_again__nothing_of_it_overtakes_and_others_flow(shell, dsn, concurrency):
    book = Recorder(lambda message: failing({0, 20})(message) if message.attempt < 3 else None)
    shell.subscribe(book, retry=[1.5], concurrency=concurrency)
    shell.app.publish_many(TOPIC, by_key(range(400), 10))
    started_s = time.monotonic()
    with shell:
        wait_until(lambda: sum(1 for one in list(book.seen) if one.key != "0") == 360)
        others_s = time.monotonic() - started_s
        assert {one.value for one in list(book.seen) if one.key == "0"} == {0}
        wait_settled(dsn)
    # Key 0 waits for four delays of 1.5 s; nobody else for any.
    assert others_s < 3.0
    check_order(book.seen, "key")
    assert len(book.seen) == 404
    assert book.attempts(0) == book.attempts(20) == [1, 2, 3]


def test_key__hot_one_fails_once__is_not_slow_for_ever(shell, dsn):
    """R18: what was parked behind it is handed out a window at a time, not one per exchange."""
    book = Recorder(lambda message: failing({0})(message) if message.attempt == 1 else None)
    shell.subscribe(book, retry=[1.0])
    shell.app.publish_many(TOPIC, [Outgoing(value, "hot") for value in range(2000)])
    with shell:
        wait_until(lambda: len(parked(dsn)) > 100)
        wait_settled(dsn, 20)
    check_order(book.seen, "key")
    again = book.of(0)[1]
    took_s = max(one.ended_s for one in book.seen) - again.ended_s
    print(f"1,999 behind a key that had failed: {took_s:.1f} s")
    assert took_s < 8
    assert [one.value for one in book.seen] == [0, *range(2000)]


def test_key__head_becomes_a_dead_letter__its_key_goes_on(shell, dsn):
    book = Recorder(failing({3}))
    shell.subscribe(book, retry=[0.2], max_attempts=2, concurrency=4)
    shell.app.publish_many(TOPIC, by_key(range(60), 3))
    with shell:
        wait_settled(dsn)
    check_order(book.seen, "key")
    assert [letter["payload"] for letter in dead(dsn)] == ["3"]
    assert {*book.values()} == {*range(60)}


def test_key__null__is_unordered(shell, dsn):
    gate = threading.Event()
    book = Recorder(lambda message: gate.wait(10) if message.value == 0 else None)
    shell.subscribe(book, concurrency=2)
    for value in range(10):
        shell.app.publish(TOPIC, value, partition=0)
    with shell:
        wait_until(lambda: {*book.values()} == {*range(1, 10)})
        gate.set()
        wait_settled(dsn)


def test_key__restart_while_its_head_is_parked__keeps_the_order(make_shell, dsn):
    """The retries row of the head, and those parked behind it, outlive their owner; the rest of the key is read anew."""
    first, second = make_shell("first"), make_shell("second")
    one, two = Recorder(failing({0})), Recorder()
    first.subscribe(one, retry=[2.0])
    second.subscribe(two)
    first.app.publish_many(TOPIC, by_key(range(900), 3))
    first.start()
    wait_until(lambda: len(one.seen) >= 601)
    first.stop()
    second.app.publish_many(TOPIC, by_key(range(900, 960), 3))
    with second:
        wait_settled(dsn)
    check_order(two.seen, "key")
    assert two.seen[-1].started_s - one.of(0)[0].ended_s >= 2.0
    assert {*one.values(), *two.values()} == {*range(960)}
    assert [seen.value for seen in two.seen if seen.key == "0"] == [value for value in range(960) if value % 3 == 0]


@pytest.mark.parametrize("concurrency", [1, 6])
def test_partition__failing__stops_its_partition_alone(shell, dsn, concurrency):
    book = Recorder(lambda message: failing({0})(message) if message.attempt < 3 else None)
    shell.subscribe(book, ordering="partition", retry=[0.5], concurrency=concurrency)
    for value in range(40):
        shell.app.publish(TOPIC, value, key=f"k{value}", partition=value % 2)
    with shell:
        wait_until(lambda: sum(one.partition == 1 for one in list(book.seen)) == 20, 1.0)
        assert {one.value for one in list(book.seen) if one.partition == 0} == {0}
        wait_settled(dsn)
    check_order(book.seen, "partition")
    assert book.attempts(0) == [1, 2, 3]


def test_none__failing__holds_up_nobody_not_even_its_key(shell, dsn):
    book = Recorder(lambda message: failing({0})(message) if message.attempt == 1 else None)
    shell.subscribe(book, ordering="none", retry=[1.0], concurrency=2)
    shell.app.publish_many(TOPIC, [Outgoing(value, "same") for value in range(100)])
    with shell:
        wait_until(lambda: len(book.seen) == 100, 1.0)
        wait_settled(dsn)
    assert book.values()[-1] == 0


@pytest.mark.parametrize(("ordering", "partitions", "wanted"), [("none", 1, 8), ("key", 1, 8), ("partition", 2, 2)])
def test_concurrency__idle_workers__take_whatever_there_is(shell, dsn, ordering, partitions, wanted):
    """Eight workers on one partition, where order allows it."""
    running, most = set(), []
    lock = threading.Lock()

    def act(message):
        with lock:
            running.add(message.value)
            most.append(len(running))
        time.sleep(0.02)
        with lock:
            running.discard(message.value)

    shell.subscribe(Recorder(act), ordering=ordering, concurrency=8)
    for value in range(80):
        shell.app.publish(TOPIC, value, key=str(value), partition=value % partitions)
    with shell:
        wait_settled(dsn)
    assert max(most) == wanted


def test_stuck__after_quick_ones__keeps_no_other_message(make_shell, dsn):
    """A quick worker is handed some ahead; what it has not begun when it gets stuck, another one does."""
    shell = make_shell(visibility_timeout_s=30.0)
    seen, free = [], threading.Event()

    def handle(message):
        seen.append(message.value)
        if message.value == 1500:
            free.wait(30)

    async def handle_in_loop(message):
        seen.append(message.value)
        if message.value == 1500:
            await asyncio.to_thread(free.wait, 30)

    shell.app.publish_many(TOPIC, [Outgoing(value, partition=0) for value in range(3000)])
    shell.subscribe(handle if shell.kind == "threads" else handle_in_loop, ordering="none", concurrency=2)
    with shell:
        wait_until(lambda: len(seen) == 3000, 10)
        free.set()
        wait_settled(dsn)
    assert sorted(seen) == list(range(3000))


def test_fairness__one_hot_partition__starves_nobody(shell, dsn):
    """5,000 in one partition before the other's first: it waits for its turn, not for the end of the queue."""
    book = Recorder(lambda _message: time.sleep(0.001))
    shell.subscribe(book)
    for _ in range(5):
        shell.app.publish_many(TOPIC, [Outgoing("hot", partition=0)] * 1000)
    with shell:
        wait_until(lambda: len(book.seen) > 200)
        published_s = time.monotonic()
        shell.app.publish_many(TOPIC, [Outgoing("cold", partition=1)] * 20)
        wait_until(lambda: len(book.of("cold")) == 20, 5)
        assert len(book.of("hot")) < 5000
        assert max(one.ended_s for one in book.of("cold")) - published_s < 1.5


def test_fairness__two_groups_in_one_process__share_it(shell, dsn):
    fast, slow = Recorder(), Recorder(lambda _message: time.sleep(0.05))
    shell.subscribe(fast, group="fast")
    shell.subscribe(slow, group="slow")
    shell.app.publish_many(TOPIC, list(range(300)))
    with shell:
        wait_until(lambda: len(fast.seen) == 300, 5)
        assert len(slow.seen) < 300


@pytest.mark.parametrize("ordering", ["key", "none"])
def test_poison__one_percent__others_keep_their_rate(make_shell, dsn, ordering):
    """Case 22, small: 3,000 messages and 1 % of failures; the others take as long as if nobody had failed."""
    count, bad = 3000, frozenset(range(0, 3000, 100))

    def others_s(name, failing_values):
        shell = make_shell(name)
        # 1 ms of work: the rate is the handlers', as it is where it matters.
        book = Recorder(lambda message: (time.sleep(0.001), failing(failing_values)(message)))
        shell.subscribe(book, group=name, ordering=ordering, retry=[0.3], max_attempts=2, concurrency=4)
        if name == "calm0":
            shell.app.publish_many(TOPIC, [Outgoing(value, f"k{value}") for value in range(count)])
        with shell:
            wait_settled(dsn, 60, name)
            check_flat(shell.engine)
        good = [one for one in book.seen if one.value not in failing_values]
        assert len(good) == count - len(failing_values)
        assert len(dead(dsn, name)) == len(failing_values)
        return max(one.ended_s for one in good) - min(one.started_s for one in good)

    # Pairs side by side, until one was not disturbed by what else the machine does.
    for attempt in range(4):
        calm_s, stormy_s = others_s(f"calm{attempt}", frozenset()), others_s(f"stormy{attempt}", bad)
        print(f"others, {ordering}: {calm_s:.2f} s without failures, {stormy_s:.2f} s with")
        # 90 % of the rate is the promise; a busy machine gets some more room.
        if stormy_s < calm_s / 0.75 + 0.3:
            return
    pytest.fail("the others were slower in every pair")


@pytest.mark.parametrize("ordering", ["key", "none", "partition"])
def test_poison__everything_fails__ends_in_dead_letters_and_memory_is_flat(shell, dsn, ordering):
    """Case 22, 100 %."""
    count = 40 if ordering == "partition" else 1500
    book = Recorder(failing(set(range(count))))
    shell.subscribe(book, ordering=ordering, retry=[0.05], max_attempts=2, concurrency=4)
    shell.app.publish_many(TOPIC, [Outgoing(value, f"k{value % 300}") for value in range(count)])
    with shell:
        wait_until(lambda: len(dead(dsn)) == count, 150)
        wait_settled(dsn, 30)
        check_flat(shell.engine)
    assert len(book.seen) == 2 * count
    if ordering != "none":
        check_order(book.seen, ordering)
    assert sum(committed(dsn).values()) == count


def check_flat(engine):
    """I15: nothing of what failed stays in memory, once the last answer is here: the tables know it before."""

    def left():
        for p in engine.partitions.values():
            yield from (p.failing, p.facts, p.parked, p.handed, p.hard)
            yield from (p.lanes.waiting_count, p.lanes.blocked(), p.ready, p.urgent)

    wait_until(lambda: engine.heap.live == 0 and not any(left()), 30, "nothing left")
    assert len(engine.heap) <= 1024 + 2


def test_partition__quick_handler_fails_now_and_then__nothing_overtakes(shell, dsn):
    """A handler so quick that it is handed messages ahead, in another order."""
    failing_ones = set(range(5, 400, 37))
    book = Recorder(lambda message: failing(failing_ones)(message) if message.attempt == 1 else None)
    shell.subscribe(book, ordering="partition", retry=[0.02])
    shell.app.publish_many(TOPIC, [Outgoing(value, str(value), partition=0) for value in range(400)])
    with shell:
        wait_settled(dsn)
    starts = [one.offset for one in sorted(book.seen, key=lambda one: one.started_s)]
    assert starts == sorted([*range(400), *failing_ones])


def test_partition__iterator_leaves_one_unsettled__hands_over_nothing_behind_it(shell, dsn):
    shell.app.publish_many(TOPIC, [Outgoing(value, partition=0) for value in range(400)])
    seen = []
    with Coordinator(dsn) as app, app.consumer(TOPIC, group="apart", ordering="partition") as consumer:

        def read():
            for message in consumer:
                seen.append(message.offset)
                if message.offset < 100:
                    message.ack()

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        wait_until(lambda: len(seen) > 100)
        time.sleep(0.5)
        consumer.close()
        thread.join(10)
    assert seen == list(range(101))
