"""Handlers that fail, never return, or come late: nothing is acked by failing."""

import sys
import threading
import time

import pytest
from support.shell import GROUP, TOPIC, committed, drain, owners, publish, query, short, wait_until

from coordinator import Coordinator
from coordinator.errors import HandlerError


@pytest.fixture
def app(dsn):
    with Coordinator(dsn, client_id="test", settings=short(visibility_timeout_s=0.5)) as made:
        made.create_topic(TOPIC, 2)
        yield made


@pytest.fixture
def run(app):
    """Run the subscriptions in a thread; stopped at the end, and must end then."""
    codes = []
    runner = threading.Thread(target=lambda: codes.append(app.run(install_signal_handlers=False)))

    def start():
        runner.start()

    yield start
    app.stop()
    runner.join(20)
    assert not runner.is_alive()


def test_handler__raises__is_delivered_again_after_its_delay_with_attempt_two(app, dsn, run):
    publish(app, 2, partition=0)
    seen = []

    @app.subscribe(TOPIC, group=GROUP, ordering="partition", retry=[0.4])
    def book(message):
        seen.append((message.offset, message.attempt, time.monotonic()))
        if len(seen) == 1:
            raise ValueError("first time")

    run()
    wait_until(lambda: committed(dsn).get(0) == 2)
    assert [(offset, attempt) for offset, attempt, _ in seen] == [(0, 1), (0, 2), (1, 1)]
    assert seen[1][2] - seen[0][2] >= 0.4


def test_handler__payload_is_no_json__counts_as_its_failure(app, dsn, run):
    from coordinator import Codec

    app.codec = Codec(lambda _value: b"{", lambda _data: 1 // 0, "application/x-broken")
    app.publish(TOPIC, "x", partition=0)
    errors = []

    @app.subscribe(TOPIC, group=GROUP, retry=[0.05])
    def book(message):
        try:
            return message.value
        except HandlerError as error:
            errors.append(error)
            raise

    run()
    wait_until(lambda: len(errors) >= 3)
    ((fails, error),) = query(dsn, "select fails, errors -> 0 ->> 'error' from coordinator.retries")
    assert fails >= 2
    assert error.startswith("HandlerError: ")


def test_handler__never_returns__another_worker_has_the_message_after_the_timeout(app, dsn, run):
    publish(app, 3, partition=0)
    seen = []
    hung = threading.Event()

    def book(message):
        seen.append((message.offset, message.attempt))
        if len(seen) == 1:
            hung.wait(15)

    # Its deadline is not moved on: this is what happens when a handler is really stuck.
    app.subscribe(TOPIC, group=GROUP, ordering="partition", concurrency=2, max_processing_s=0)(book)
    run()
    try:
        wait_until(lambda: committed(dsn).get(0) == 3)
        assert seen == [(0, 1), (0, 2), (1, 1), (2, 1)]
    finally:
        hung.set()


def test_ack__of_the_first_run_after_the_timeout__settles_while_nobody_has(app, dsn):
    publish(app, 2, partition=0)
    with app.consumer(TOPIC, group=GROUP) as consumer:
        (first,) = consumer.poll(1, 5)
        wait_until(lambda: not first.delivery.live)
        first.ack(wait=True)
        assert committed(dsn)[0] == 1
        (following,) = consumer.poll(1, 5)
        assert following.offset == 1


def test_ack__of_the_first_run_while_the_second_is_under_way__settles_and_the_second_is_a_no_op(app, dsn):
    publish(app, 2, partition=0)
    with app.consumer(TOPIC, group=GROUP, ordering="partition") as consumer:
        (first,) = consumer.poll(1, 5)
        (second,) = consumer.poll(1, 5)
        assert (second.offset, second.attempt) == (first.offset, 2)
        first.ack(wait=True)
        assert committed(dsn)[0] == 1
        (following,) = consumer.poll(1, 5)
        second.ack(wait=True)
        first.ack(wait=True)
        assert (following.offset, committed(dsn)[0]) == (1, 1)
        # The deadline had written a retries row; the ack has taken it away.
        assert query(dsn, "select count(*) from coordinator.retries") == [(0,)]


def test_extend__handler_needs_longer__is_not_delivered_again(app):
    publish(app, 1, partition=0)
    with app.consumer(TOPIC, group=GROUP) as consumer:
        (message,) = consumer.poll(1, 5)
        message.extend(3)
        assert consumer.poll(1, 1.2) == []
        assert message.delivery.live


def test_nack__is_delivered_again_and_nothing_overtakes_it(app):
    publish(app, 3, partition=0)
    with app.consumer(TOPIC, group=GROUP, ordering="partition", retry=[0.1]) as consumer:
        (first,) = consumer.poll(1, 5)
        first.nack()
        found = drain(consumer, 3)
    assert [(message.offset, message.attempt) for message in found] == [(0, 2), (1, 1), (2, 1)]


def test_nack__in_a_handler_that_returns__is_delivered_again(app, dsn, run):
    publish(app, 2, partition=0)
    seen = []

    @app.subscribe(TOPIC, group=GROUP, ordering="partition", retry=[0.1])
    def book(message):
        seen.append((message.offset, message.attempt))
        if len(seen) == 1:
            message.nack()

    run()
    wait_until(lambda: committed(dsn).get(0) == 2)
    assert seen == [(0, 1), (0, 2), (1, 1)]


def test_nack__with_automatic_acks__is_delivered_again(app):
    publish(app, 2, partition=0)
    with app.consumer(TOPIC, group=GROUP, auto_ack=True, ordering="partition", retry=[0.1]) as consumer:
        (first,) = consumer.poll(1, 5)
        first.nack()
        (again,) = consumer.poll(1, 5)
        assert (again.offset, again.attempt) == (0, 2)


def test_handler__calls_exit__does_not_leave_a_process_that_owns_and_does_nothing(app, dsn, run):
    """Either it counts as a failure of the handler, or it ends the run; what must not be is a member without a worker."""
    publish(app, 2, partition=0)
    seen = []

    @app.subscribe(TOPIC, group=GROUP)
    def book(message):
        seen.append(message.offset)
        if len(seen) == 1:
            sys.exit(3)

    run()
    wait_until(lambda: seen)
    wait_until(lambda: committed(dsn)[0] == 2 or set(owners(dsn).values()) == {None}, 4)
