"""Handlers that take lists: each message has its own outcome, and a failing batch does not use up its neighbours."""

import pytest
from support.ledger import EFFECTS, Recorder, dead, effects, parked, wait_settled
from support.shell import TOPIC, query, wait_until

from coordinator import Outgoing, Reject, Retry


class Batches:
    """A batch handler that remembers values and attempts of each list."""

    def __init__(self, act):
        self.act = act
        self.seen = []

    def __call__(self, batch, *rest):
        self.seen.append([(message.value, message.attempt) for message in batch])
        return self.act(batch, *rest)

    def of(self, value):
        return [(batch, attempt) for batch in self.seen for found, attempt in batch if found == value]


def test_batch__returns_none__all_are_acked(shell, dsn):
    handler = Batches(lambda _batch: None)
    shell.subscribe(handler, batch_size=50)
    shell.app.publish_many(TOPIC, list(range(300)))
    with shell:
        wait_settled(dsn)
    assert sorted(value for batch in handler.seen for value, _ in batch) == list(range(300))
    assert max(map(len, handler.seen)) > 1
    assert all(len(batch) <= 50 for batch in handler.seen)


def test_batch__result_per_message__each_has_its_own(shell, dsn):
    def act(batch):
        if len(batch) == 1 and batch[0].attempt > 1:
            return None
        errors = {1: ValueError("one"), 2: Reject("two"), 3: Retry(0.3)}
        return {message: errors.get(message.value) for message in batch}

    handler = Batches(act)
    shell.subscribe(handler, batch_size=100, retry=[0.05])
    shell.app.publish_many(TOPIC, list(range(6)))
    with shell:
        wait_settled(dsn)
    assert [(letter["payload"], letter["error"]) for letter in dead(dsn)] == [("2", "two")]
    assert [attempt for _, attempt in handler.of(1)] == [1, 2]
    assert [attempt for _, attempt in handler.of(3)] == [1, 2]
    assert all(len(handler.of(value)) == 1 for value in (0, 4, 5))


def test_batch__message_left_out__counts_as_failed(shell, dsn):
    def act(batch):
        return {message: None for message in batch if message.value != 4 or message.attempt > 1}

    handler = Batches(act)
    shell.subscribe(handler, batch_size=100, retry=[0.05])
    shell.app.publish_many(TOPIC, list(range(8)))
    with shell:
        wait_settled(dsn)
    assert [attempt for _, attempt in handler.of(4)] == [1, 2]
    assert sum(map(len, handler.seen)) == 9


@pytest.mark.parametrize("returned", [True, [], "done", 3])
def test_batch__returns_something_else__counts_as_failed(shell, dsn, returned):
    handler = Batches(lambda _batch: returned)
    shell.subscribe(handler, batch_size=10, max_attempts=1)
    shell.app.publish_many(TOPIC, [1, 2])
    with shell:
        wait_until(lambda: len(dead(dsn)) == 2)


@pytest.mark.parametrize("ordering", ["key", "none"])
def test_batch__one_poisons_it__neighbours_fail_once_and_come_alone(shell, dsn, ordering):
    """R19: who has failed comes in a batch of one; nobody but the poison is dead in the end."""

    def act(batch):
        if any(message.value == 13 for message in batch):
            raise ValueError("all of it")

    handler = Batches(act)
    shell.subscribe(handler, batch_size=20, ordering=ordering, retry=[0.05], max_attempts=3)
    shell.app.publish_many(TOPIC, [Outgoing(value, str(value)) for value in range(100)])
    with shell:
        wait_settled(dsn)
    assert [letter["payload"] for letter in dead(dsn)] == ["13"]
    for batch in handler.seen:
        assert len(batch) == 1 or all(attempt == 1 for _, attempt in batch)
    assert all(len(handler.of(value)) <= 2 for value in range(100) if value != 13)


def test_batch__partition_order__is_one_at_a_time(shell, dsn):
    handler = Batches(lambda _batch: None)
    shell.subscribe(handler, batch_size=20, ordering="partition")
    for value in range(40):
        shell.app.publish(TOPIC, value, partition=0)
    with shell:
        wait_settled(dsn)
    assert [value for batch in handler.seen for value, _ in batch] == list(range(40))


def test_batch__of_one_key__never_holds_two(shell, dsn):
    """A list is handled as one: two of a key in it would be under way at once."""
    handler = Batches(lambda _batch: None)
    shell.subscribe(handler, batch_size=20)
    shell.app.publish_many(TOPIC, [Outgoing(value, str(value % 3)) for value in range(60)])
    with shell:
        wait_settled(dsn)
    for batch in handler.seen:
        keys = [value % 3 for value, _ in batch]
        assert len(keys) == len(set(keys))


def test_batch__transactional__all_or_nothing_and_poison_is_left_alone(shell, dsn):
    query(dsn, EFFECTS)

    def act(batch, connection):
        for message in batch:
            connection.execute("insert into effects (value) values (%s)", (message.value,))
            if message.value == 13:
                raise ValueError("after an effect")

    handler = Batches(act)
    shell.subscribe(handler, batch_size=20, transactional=True, retry=[0.05], max_attempts=3)
    shell.app.publish_many(TOPIC, list(range(60)))
    with shell:
        wait_settled(dsn)
    assert effects(dsn) == [(value, 1) for value in range(60) if value != 13]
    assert [letter["payload"] for letter in dead(dsn)] == ["13"]
    assert parked(dsn) == []


def test_poll__limit_smaller_than_what_is_there__strands_nothing(shell):
    """Case 3."""
    shell.app.publish_many(TOPIC, list(range(25)))
    book = Recorder()
    with shell.app.consumer(TOPIC, group="g") as consumer:
        for batch in consumer.batches(7, timeout_s=0.5):
            if not batch:
                break
            for message in batch:
                book(message)
                message.ack()
        assert consumer.at_end(5)
    assert sorted(book.values()) == list(range(25))
