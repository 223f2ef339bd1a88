"""What the two groups do with a message: one in the form of a handler, one in the form of a loop over batches."""

import itertools
import signal
import threading
from types import FrameType

from coordinator import Coordinator, Message
from coordinator.cli.demo import tables
from coordinator.cli.demo.lifeline import report
from coordinator.cli.demo.plan import AUDIT, AUDIT_BATCH, DELAYS, TOPIC, Task

_BATCH_TIMEOUT_S = 0.2


def keep_delays(app: Coordinator, connection: tables.Connection, task: Task) -> int:
    """Run the group `delays` until SIGTERM; returns the exit code."""
    numbers = itertools.count(1)

    @app.subscribe(TOPIC, group=DELAYS)
    def keep(message: Message) -> None:
        tables.book(connection, DELAYS, task.name, message)
        if next(numbers) == task.freeze_after:
            _freeze(message)

    return app.run()


def count_all(app: Coordinator, connection: tables.Connection, task: Task) -> int:
    """Run the group `audit` until SIGTERM: note every message, a batch at a time; returns the exit code."""
    stopping = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        stopping.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    with app.consumer(TOPIC, group=AUDIT) as consumer:
        for messages in consumer.batches(max_messages=AUDIT_BATCH, timeout_s=_BATCH_TIMEOUT_S):
            if messages:
                tables.insert_deliveries(connection, AUDIT, task.name, messages)
            for message in messages:
                message.ack()
            if stopping.is_set():
                break
    return 0


def _freeze(message: Message) -> None:
    """Stop at the worst moment there is, the effect committed and the ack not sent, and wait for SIGKILL."""
    report("frozen", nr=message.value["nr"], offset=message.offset, partition=message.partition)
    threading.Event().wait()
