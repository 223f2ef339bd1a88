"""What the two groups do with a message: one in the form of a handler, one in the form of a loop over batches."""

import itertools
import os
import signal
import threading
from types import FrameType

from coordinator import Coordinator, Message, Reject
from coordinator.cli.demo import tables
from coordinator.cli.demo.flights import is_cancelled
from coordinator.cli.demo.lifeline import report
from coordinator.cli.demo.plan import (
    AUDIT,
    AUDIT_BATCH,
    CONCURRENCY,
    DELAYS,
    MAX_CRASHES,
    RETRY_S,
    TOPIC,
    Task,
)

_BATCH_TIMEOUT_S = 0.2


def keep_delays(app: Coordinator, notes: tables.Connection, task: Task) -> int:
    """Run the group `delays` until SIGTERM; returns the exit code. `notes`: for hand-overs, outside of transactions."""
    numbers = itertools.count(1)

    @app.subscribe(
        TOPIC,
        group=DELAYS,
        ordering="key",
        concurrency=CONCURRENCY,
        transactional=True,
        max_crashes=MAX_CRASHES,
        retry=[RETRY_S],
    )
    def keep(message: Message, connection: tables.Connection) -> None:
        flight = message.value
        tables.insert_deliveries(notes, DELAYS, task.name, [message])
        if flight["nr"] == task.poison_nr:
            _die(message)
        if is_cancelled(flight) and not task.counts_cancelled:
            raise Reject("cancelled")
        tables.book(connection, message)
        if next(numbers) == task.freeze_after:
            _freeze(message)

    return app.run()


def count_all(app: Coordinator, notes: tables.Connection, task: Task) -> int:
    """Run the group `audit` until SIGTERM: note every message, a batch at a time; returns the exit code."""
    stopping = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        stopping.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    with app.consumer(TOPIC, group=AUDIT) as consumer:
        for messages in consumer.batches(max_messages=AUDIT_BATCH, timeout_s=_BATCH_TIMEOUT_S):
            if messages:
                tables.insert_deliveries(notes, AUDIT, task.name, messages)
            for message in messages:
                message.ack()
            if stopping.is_set():
                break
    return 0


def _die(message: Message) -> None:
    """Play the message that no process survives: a bug in a C library, or all the memory there is."""
    report("poisoned", nr=message.value["nr"], attempt=message.attempt)
    os.kill(os.getpid(), signal.SIGKILL)


def _freeze(message: Message) -> None:
    """Stop in the middle of a transaction, the effect written and nothing committed, and wait for SIGKILL."""
    report("frozen", nr=message.value["nr"], offset=message.offset, partition=message.partition)
    threading.Event().wait()
