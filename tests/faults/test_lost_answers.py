"""Connections that break at the worst moment, by a proxy: R2 and R3 through the shell."""

import random
import threading
import time

import pytest
from support.proxy import Fault, Proxy
from support.shell import GROUP, TOPIC, Reading, committed, drain, epochs, publish, short, terminate, wait_until

from coordinator import Coordinator
from coordinator.errors import UnavailableError


@pytest.fixture
def proxy(dsn):
    with Proxy(dsn) as made:
        yield made


@pytest.fixture
def direct(dsn):
    """For the test's own publishing: not through the proxy."""
    with Coordinator(dsn, client_id="direct", settings=short()) as made:
        made.create_topic(TOPIC, 2)
        yield made


@pytest.fixture
def app(proxy, direct):
    with Coordinator(proxy.dsn, client_id="test", settings=short()) as made:
        yield made


def check_deliveries(deliveries, confirmed):
    """I4 by offsets, I5 and I10: none missing, none after its confirmed ack, each epoch in offset order."""
    done = set()
    last = {}
    acks = iter(confirmed)
    for partition, offset, epoch, _attempt in deliveries:
        assert (partition, offset) not in done, f"{partition}@{offset} was delivered after its ack was confirmed"
        assert offset >= last.get((partition, epoch), -1), f"{partition}@{offset} was overtaken within epoch {epoch}"
        last[partition, epoch] = offset
        done |= {ack for ack in acks if ack == (partition, offset)}


@pytest.mark.parametrize("moment", ["before", "after"])
def test_exchange__cut_at_its_commit__one_outcome_and_nothing_forgotten(app, direct, proxy, dsn, moment):
    """R3: the window was committed and its rows never came; or the acks were committed and nobody was told."""
    published = []
    with app.consumer(TOPIC, group=GROUP) as consumer:
        assert consumer.at_end(5)
        before = epochs(dsn)
        values, places = [], []
        for round_ in range(8):
            proxy.put(Fault(cut_commit=moment), "coordinator work")
            published += publish(direct, 20, start=round_ * 20)
            cuts = proxy.cuts
            wait_until(lambda cuts=cuts: proxy.cuts > cuts, 5)
            proxy.heal()
            found = drain(consumer, 10)
            # Again with acks on their way.
            proxy.put(Fault(cut_commit=moment), "coordinator work")
            cuts = proxy.cuts
            found += drain(consumer, 1, 1)
            wait_until(lambda cuts=cuts: proxy.cuts > cuts, 5)
            proxy.heal()
            found += drain(consumer, 20 - len(found))
            values += [message.value for message in found]
            places += [(message.partition, message.offset) for message in found]
        consumer.commit()
        assert consumer.poll(1, 0.3) == []
        assert epochs(dsn) == before
    assert sorted(values) == published
    assert len(places) == len(set(places))
    assert sum(committed(dsn).values()) == len(published)


def test_ack_that_waits__answer_of_its_commit_lost__returns_when_it_is_known(app, direct, proxy, dsn):
    publish(direct, 2, partition=0)
    with app.consumer(TOPIC, group=GROUP) as consumer:
        (message,) = consumer.poll(1, 5)
        time.sleep(0.3)
        proxy.put(Fault(cut_commit="after"), "coordinator work")
        healing = threading.Timer(0.5, proxy.heal)
        healing.start()
        message.ack(wait=True)
        assert committed(dsn)[0] == 1
        healing.join()
        (following,) = consumer.poll(1, 5)
        assert following.offset == 1


def test_exchange__cut_at_fifty_places_of_the_answer__nothing_lost_nothing_repeated(app, direct, proxy, dsn):
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    consumer = app.consumer(TOPIC, group=GROUP).start()
    reading = Reading(consumer, wait=True)
    published = []
    for round_ in range(50):
        published += publish(direct, 6, start=round_ * 6)
        proxy.put(
            Fault(cut_after_bytes=chance.choice((chance.randrange(100), chance.randrange(800)))), "coordinator work"
        )
        cuts = proxy.cuts
        wait_until(lambda cuts=cuts: proxy.cuts > cuts, 5, "a cut")
        proxy.heal()
        # Cut again before it is back, and its pauses between attempts grow: right, and slow.
        count = len(published)
        wait_until(lambda count=count: len(set(reading.values)) == count, 20, f"all of {count}, seed {seed}")
    reading.stop()
    assert reading.errors == []
    assert sorted(reading.values) == published
    check_deliveries(reading.deliveries, reading.confirmed)
    assert {epoch for _, _, epoch, _ in reading.deliveries} == {1}


def test_acks__made_while_the_connection_is_away__are_written_and_not_delivered_again(app, direct, proxy, dsn):
    publish(direct, 40)
    with app.consumer(TOPIC, group=GROUP) as consumer:
        batch = wait_until(lambda: consumer.poll(10, 1))
        proxy.refuse()
        for message in batch:
            message.ack()
        time.sleep(0.3)
        proxy.heal()
        consumer.commit()
        found = drain(consumer, 40 - len(batch))
        assert consumer.poll(1, 0.3) == []
    places = [(message.partition, message.offset) for message in [*batch, *found]]
    assert len(places) == len(set(places)) == 40
    assert {message.epoch for message in [*batch, *found]} == {1}


def test_backend_of_the_work_connection__terminated_again_and_again__nothing_lost_nothing_repeated(app, direct, dsn):
    reading = Reading(app.consumer(TOPIC, group=GROUP).start(), wait=True)
    published = []
    ends = 0
    for round_ in range(30):
        published += publish(direct, 10, start=round_ * 10)
        ends += terminate(dsn, "coordinator work")
        time.sleep(0.05)
    wait_until(lambda: len(set(reading.values)) == len(published), 20)
    reading.stop()
    assert ends >= 3
    assert reading.errors == []
    assert sorted(reading.values) == published
    check_deliveries(reading.deliveries, reading.confirmed)


@pytest.mark.direct("a listener needs a session")
def test_backend_of_the_control_connection__terminated__wake_ups_are_quick_again(app, direct, dsn):
    """Case 13: only the LISTEN session ends; the next wake-up after it is back must not wait for the poll."""
    settings = short(poll_max_s=5.0)
    with Coordinator(dsn, client_id="listener", settings=settings).consumer(TOPIC, group=GROUP) as consumer:
        assert consumer.at_end(5)
        for round_ in range(3):
            wait_until(lambda: terminate(dsn, "coordinator control listener"))
            # Published while nobody listens: found when it listens again.
            publish(direct, 1, start=round_, partition=0)
            started_s = time.monotonic()
            (message,) = consumer.poll(1, 5)
            assert time.monotonic() - started_s < 1.5
            message.ack(wait=True)
        time.sleep(2)
        for number in range(5):
            publish(direct, 1, start=100 + number, partition=0)
            started_s = time.monotonic()
            (message,) = consumer.poll(1, 5)
            assert time.monotonic() - started_s < 0.3
            message.ack(wait=True)


def test_connection__refused_for_a_while__goes_on_by_itself(app, direct, proxy, dsn):
    """Longer than the lease: nobody judged, so nothing is lost and no attempt is charged."""
    reading = Reading(app.consumer(TOPIC, group=GROUP).start())
    publish(direct, 20)
    wait_until(lambda: len(reading.values) == 20)
    proxy.refuse()
    publish(direct, 20, start=20)
    time.sleep(2.5)
    proxy.heal()
    wait_until(lambda: len(reading.values) == 40, 8)
    reading.stop()
    assert reading.errors == []
    assert sorted(reading.values) == list(range(40))
    assert {attempt for *_, attempt in reading.deliveries} == {1}


def test_lease__cannot_be_renewed__nothing_starts_after_it_may_have_run_out(app, direct, proxy):
    """The control connection is cut off, the work connection is well: dispatching stops by the client's own clock."""
    with app.consumer(TOPIC, group=GROUP) as consumer:
        assert consumer.at_end(5)
        proxy.put(Fault(swallow_up=True), "coordinator control")
        cut_s = time.monotonic()
        time.sleep(1.6)
        publish(direct, 1, partition=0)
        assert consumer.poll(1, 0.5) == []
        assert time.monotonic() - cut_s > 1.5
        proxy.heal()
        proxy.reset("coordinator control")
        assert len(consumer.poll(1, 5)) == 1


def test_answers__slow__everything_is_right_all_the_same(app, direct, proxy, dsn):
    proxy.put(Fault(delay_s=0.05))
    published = publish(direct, 60)
    with app.consumer(TOPIC, group=GROUP) as consumer:
        found = drain(consumer, 60)
        consumer.commit()
    assert sorted(message.value for message in found) == published
    assert sum(committed(dsn).values()) == 60


def test_answers__slow__ack_by_another_thread_is_not_held_up(app, direct, proxy):
    """The engine's lock is not held during I/O: an ack that does not wait returns at once, whatever the network does."""
    publish(direct, 30, partition=0)
    with app.consumer(TOPIC, group=GROUP) as consumer:
        proxy.put(Fault(delay_s=0.4), "coordinator work")
        longest_s = 0.0
        for _ in range(20):
            for message in consumer.poll(1, 5):
                time.sleep(0.02)
                started_s = time.monotonic()
                message.ack()
                message.extend(5)
                longest_s = max(longest_s, time.monotonic() - started_s)
        assert longest_s < 0.1


def test_rows__held_back_in_the_socket__claims_are_free_for_others(app, direct, proxy, dsn):
    """R8: the proxy stops reading, the server waits in send; meanwhile the owner's lease ends, and another takes over at once."""
    with app.consumer(TOPIC, group=GROUP) as consumer:
        assert consumer.at_end(5)
        proxy.put(Fault(hold=True), "coordinator")
        for number in range(20):
            direct.publish(TOPIC, "x" * 900_000, key=str(number))
        started_s = time.monotonic()
        with direct.consumer(TOPIC, group=GROUP) as heir:
            found = drain(heir, 20, 8)
            heir.commit()
            assert len(found) == 20
            assert time.monotonic() - started_s < 7
        proxy.heal()
        publish(direct, 2, start=1)
        assert len(drain(consumer, 2, 8)) == 2


def test_close__server_unreachable__returns_in_bounded_time(app, direct, proxy):
    publish(direct, 5, partition=0)
    with Coordinator(proxy.dsn, client_id="x", settings=short(commit_timeout_s=1.0)) as short_app:
        consumer = short_app.consumer(TOPIC, group=GROUP).start()
        (message,) = consumer.poll(1, 5)
        proxy.refuse()
        message.ack()
        with pytest.raises(UnavailableError):
            consumer.commit()
        started_s = time.monotonic()
        with pytest.raises(UnavailableError):
            consumer.close()
        assert time.monotonic() - started_s < 4


def test_start__server_unreachable__raises_unavailable(app, proxy):
    proxy.refuse()
    with pytest.raises(UnavailableError):
        app.consumer(TOPIC, group=GROUP).start()


@pytest.mark.slow
def test_network__swallows_both_ways__is_back_by_itself(app, direct, proxy, dsn):
    """Case 14: no FIN, no RST, and TCP's own acks go on, as behind a pooler that hangs: noticed within 15 s."""
    consumer = (
        Coordinator(proxy.dsn, client_id="x", settings=short(commit_timeout_s=1)).consumer(TOPIC, group=GROUP).start()
    )
    try:
        assert consumer.at_end(5)
        proxy.put(Fault(swallow_up=True, swallow_down=True))
        publish(direct, 5, partition=0)
        time.sleep(2)
        # What is open stays deaf; who connects anew gets through.
        proxy._rules.clear()
        assert len(drain(consumer, 5, 16)) == 5
    finally:
        proxy.reset()
        consumer.close()
