"""How long things take that the protocol promises to be quick, on a real consumer."""

import statistics
import threading
import time

import pytest
from support.patches import replaced, sql_text
from support.sessions import Db, wait_until

from coordinator import Coordinator, Settings

ROUNDS = 9


class Reading(threading.Thread):
    """A consumer in a thread; notes when each offset arrived."""

    def __init__(self, app):
        super().__init__(daemon=True)
        self.arrived_s = {}
        self.stopping = threading.Event()
        self.consumer = app.consumer("t", group="g", ordering="partition")

    def run(self):
        while not self.stopping.is_set():
            for message in self.consumer.poll(10, 0.1):
                self.arrived_s[message.partition, message.offset] = time.monotonic()
                message.ack()

    @property
    def exchange_count(self):
        return self.consumer._runtime.engine.exchange_count

    def wait_for(self, offset, partition=0):
        wait_until(lambda: (partition, offset) in self.arrived_s, pause_s=0.001)
        return self.arrived_s[partition, offset]

    def wait_quiet(self):
        """Return when the consumer has read everything and polls rarely."""
        wait_until(lambda: self.consumer.at_end(0.1))


@pytest.fixture
def db(dsn):
    with Db(dsn, partitions=2) as made:
        yield made


@pytest.fixture
def reading(db):
    with Coordinator(db.dsn, settings=Settings()) as app:
        thread = Reading(app)
        with thread.consumer:
            thread.start()
            offset = db.session().publish(wake=True)
            thread.wait_for(offset)
            yield thread
            thread.stopping.set()
            thread.join(5)


@pytest.fixture
def one_bucket(db):
    """As if no time went by: whoever publishes while a notifier is open skips its NOTIFY."""
    db.observer.run(replaced(sql_text("wake_readers"), ("clock_timestamp()", "'epoch'::timestamptz")))


def test_gap__publisher_rolls_back__is_passed_within_three_exchanges(db, reading):
    a, b, counts = db.session(), db.session(), []
    for _ in range(ROUNDS):
        a.begin()
        a.publish()
        offset = b.publish(wake=True)
        # The gap was seen, and the message behind it is held back.
        before = reading.exchange_count
        wait_until(lambda before=before: reading.exchange_count >= before + 2)
        assert (0, offset) not in reading.arrived_s
        # The exchange that is under way may have read its evidence already.
        before = reading.exchange_count + 1
        a.rollback()
        reading.wait_for(offset)
        counts.append(reading.exchange_count - before)
    print(f"exchanges: {counts}")
    assert statistics.median(counts) <= 3


def test_publish__open_publisher_in_one_partition__others_go_on(db, reading):
    a, b = db.session().begin(), db.session()
    low = a.publish(partition=0)
    held = b.publish(partition=0, wake=True)
    free = b.publish(partition=1, wake=True)
    reading.wait_for(free, 1)
    assert (0, held) not in reading.arrived_s
    a.commit()
    assert reading.wait_for(low) <= reading.wait_for(held)


def test_publish__notify_skipped__arrives_within_50_ms_of_its_commit(db, reading, one_bucket):
    a, b, delays_s = db.session(), db.session(), []
    for round_ in range(ROUNDS):
        a.begin()
        a.publish(wake=True)
        b.begin()
        offset = b.publish(wake=True)
        a.commit()
        # It commits when the reader has looked for it, for a while already.
        threading.Event().wait(0.01 * round_)
        b.commit()
        committed_s = time.monotonic()
        delays_s.append(reading.wait_for(offset) - committed_s)
    print(f"ms: {[round(delay_s * 1000, 1) for delay_s in delays_s]}")
    assert statistics.median(delays_s) < 0.05
    assert max(delays_s) < 1


def test_publish__notify_skipped_and_the_notifier_stays_open__arrives_by_the_backstop(db, reading, one_bucket):
    reading.wait_quiet()
    a, b = db.session().begin(), db.session()
    # Another partition, so that only the wake-up is missing.
    a.publish(partition=1, wake=True)
    offset = b.publish(partition=0, wake=True)
    committed_s = time.monotonic()
    assert reading.wait_for(offset) - committed_s < 2.5
    a.commit()


def test_rolled_back_tail__consumer__becomes_quiet(db, reading):
    a = db.session().begin()
    a.publish(wake=True)
    a.rollback()
    reading.wait_quiet()
    assert db.observer.one("select sum(o.lag) from coordinator.offsets o") == 0
    before = reading.exchange_count
    threading.Event().wait(0.5)
    # Polls double from 10 ms to a second.
    assert reading.exchange_count - before <= 8


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_consumer__default_isolation_of_the_database__reads_everything(db, isolation):
    db.observer.run(
        f"alter database {db.observer.one('select current_database()')} set default_transaction_isolation = '{isolation}'"
    )
    with Coordinator(db.dsn, settings=Settings(poll_max_s=0.1)) as app:
        thread = Reading(app)
        with thread.consumer:
            thread.start()
            a, b = db.session(), db.session()
            a.run("begin")
            a.publish()
            offsets = [b.publish() for _ in range(20)]
            a.rollback()
            db.rotate()
            offsets.append(b.publish(wake=True))
            for offset in offsets:
                thread.wait_for(offset)
            thread.stopping.set()
            thread.join(5)
