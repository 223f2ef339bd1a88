"""Every committed message is delivered to every group, and nothing that was rolled back, however transactions overlap."""

import asyncio
import random
import secrets
import threading
import time
from contextlib import ExitStack

import psycopg
import pytest
from support.patches import ENLIST, replaced, sql_text
from support.recorder import Recorder
from support.sessions import wait_until

from coordinator import AsyncCoordinator, Coordinator, Settings

PUBLISHERS = 20
MESSAGES = 10_000
PARTITIONS = 20
TOPIC = "orders"
GROUPS = {"billing": 1, "ledger": 1, "audit": 2}
# The other shell; the rest reads on threads.
ON_A_LOOP = ("search",)
ALL_GROUPS = (*GROUPS, *ON_A_LOOP)
FAST = Settings(membership_poll_s=0.2, poll_max_s=0.2)


class Publisher(threading.Thread):
    """Publishes `count` messages in transactions of all kinds, and tells the recorder what became of them."""

    def __init__(self, dsn, recorder, number, count, seed):
        super().__init__(daemon=True)
        self.dsn, self.recorder, self.number, self.left = dsn, recorder, number, count
        self.random = random.Random(seed * 1000 + number)
        self.serial = 0

    def run(self):
        try:
            with psycopg.connect(self.dsn, autocommit=True) as connection:
                while self.left > 0:
                    self.transaction(connection)
        except BaseException as error:
            self.recorder.problems.append(error)

    def transaction(self, connection):
        kind = self.random.choice(["plain"] * 4 + ["savepoint"] * 2 + ["prepared", "wide", "rollback"])
        isolation = self.random.choice(["read committed"] * 2 + ["repeatable read", "serializable"])
        self.sent, self.gone = {}, set()
        try:
            connection.execute(f"begin isolation level {isolation}")
            getattr(self, kind)(connection)
            if self.random.random() < 0.3:
                time.sleep(self.random.random() * 0.01)
            if kind == "rollback":
                connection.execute("rollback")
                self.recorder.undo([*self.sent, *self.gone])
            elif kind == "prepared":
                self.commit_prepared(connection)
            else:
                connection.execute("commit")
                self.done()
        except psycopg.errors.SerializationFailure:
            connection.execute("rollback")
            self.recorder.undo([*self.sent, *self.gone])

    def done(self):
        self.recorder.commit(self.sent)
        self.recorder.undo(self.gone)
        self.left -= len(self.sent)

    def plain(self, connection):
        self.publish(connection, self.random.choice([1, 1, 1, 2, 5, 40]))

    rollback = plain

    def savepoint(self, connection):
        self.publish(connection, 1)
        connection.execute("savepoint s")
        before = dict(self.sent)
        self.publish(connection, self.random.choice([1, 3]))
        if self.random.random() < 0.5:
            connection.execute("rollback to savepoint s")
            self.gone |= self.sent.keys() - before.keys()
            self.sent = before
            if self.random.random() < 0.5:
                self.publish(connection, 1)
        else:
            connection.execute("release savepoint s")

    def wide(self, connection):
        self.publish(connection, 24, partitions=range(self.random.choice([16, 17, 20])))

    def prepared(self, connection):
        self.publish(connection, self.random.choice([1, 3]), wake=False)

    def commit_prepared(self, connection):
        name = f"p{self.number}_{self.serial}"
        connection.execute(f"prepare transaction '{name}'")
        time.sleep(self.random.random() * 0.02)
        if self.random.random() < 0.7:
            connection.execute(f"commit prepared '{name}'")
            self.done()
        else:
            connection.execute(f"rollback prepared '{name}'")
            self.recorder.undo(self.sent)

    def publish(self, connection, count, *, partitions=range(PARTITIONS), wake=True):
        names = [f"{self.number}-{self.serial + place}" for place in range(count)]
        self.serial += count
        places = [self.random.choice(partitions) for _ in names]
        if count == len(partitions) + 4:
            places = [place % len(partitions) for place in range(count)]
        if count == 1:
            text = 'select array[p.partition], array[p."offset"] from coordinator.publish(%s, to_jsonb(%s::text), p_partition => %s, p_wake => %s) p'
            given = (TOPIC, names[0], places[0], wake)
        else:
            text = "select p.partitions, p.offsets from coordinator.publish_many(%s, %s, p_partitions => %s, p_wake => %s) p"
            given = (TOPIC, [f'"{name}"'.encode() for name in names], places, wake)
        taken, offsets = connection.execute(text, given).fetchone()
        assert taken == places
        self.sent.update(zip(names, zip(taken, offsets, strict=True), strict=True))


def consume(consumer, group, recorder, stopping):
    try:
        while not stopping.is_set():
            messages = consumer.poll(500, 0.2)
            recorder.deliver(group, messages)
            for message in messages:
                message.ack()
    except BaseException as error:
        recorder.problems.append(error)


async def consume_on_a_loop(dsn, group, recorder, stopping):
    """`consume` on the other shell, with a coordinator of its own."""
    try:
        async with (
            AsyncCoordinator(dsn, settings=FAST) as app,
            app.consumer(TOPIC, group=group, ordering="partition") as consumer,
        ):
            while not stopping.is_set():
                messages = await consumer.poll(500, 0.2)
                recorder.deliver(group, messages)
                for message in messages:
                    message.ack()
    except BaseException as error:
        recorder.problems.append(error)


@pytest.fixture
def seed():
    value = secrets.randbelow(10**6)
    print(f"seed {value}")
    return value


def run(dsn, seed, messages):
    """Publish and consume all of it; returns the recorder when every group has lag 0, or when something went wrong."""
    recorder, stopping = Recorder(), threading.Event()
    publishers = [Publisher(dsn, recorder, number, messages // PUBLISHERS, seed) for number in range(PUBLISHERS)]
    with ExitStack() as stack:
        app = stack.enter_context(Coordinator(dsn, settings=FAST))
        app.create_topic(TOPIC, PARTITIONS)
        # An unrelated transaction that writes, open for the whole run, delays nothing.
        unrelated = stack.enter_context(psycopg.connect(dsn))
        unrelated.execute("create table unrelated as select 1 as id")
        threads = []
        for group in ON_A_LOOP:
            # The group is there before anything is published, and so has to get it.
            app.consumer(TOPIC, group=group).start().close()
            reading = consume_on_a_loop(dsn, group, recorder, stopping)
            threads.append(threading.Thread(target=asyncio.run, args=(reading,), daemon=True))
        for group, count in GROUPS.items():
            for _ in range(count):
                consumer = stack.enter_context(app.consumer(TOPIC, group=group, ordering="partition"))
                threads.append(
                    threading.Thread(target=consume, args=(consumer, group, recorder, stopping), daemon=True)
                )
        for thread in [*threads, *publishers]:
            thread.start()
        while any(publisher.is_alive() for publisher in publishers):
            app.rotate(TOPIC)
            publishers[0].join(0.5)
        # What was rolled back is proven so, and everything is settled: the lag is 0. Nothing can come after that.
        wait_until(lambda: recorder.problems or not any(lags(app)), 40)
        stopping.set()
        for thread in threads:
            thread.join(10)
        unrelated.rollback()
    return recorder


def lags(app):
    return [place.lag for group in ALL_GROUPS for place in app.group_offsets(group)]


def test_publish__20_overlapping_publishers_of_all_kinds__every_group_gets_every_message(dsn, seed):
    recorder = run(dsn, seed, MESSAGES)
    assert len(recorder.committed) >= MESSAGES
    assert recorder.undone
    for group in ALL_GROUPS:
        recorder.check(group)


def test_publish__the_same_without_the_publishers_locks__is_seen_to_lose(dsn, seed):
    """The test above can fail."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(replaced(sql_text("publish_many"), (ENLIST, "")))
    for round_ in range(8):
        recorder = run(dsn, seed + round_, 2000)
        assert not recorder.problems
        if any(map(recorder.missing, ALL_GROUPS)):
            return
    pytest.fail("nothing was lost")
