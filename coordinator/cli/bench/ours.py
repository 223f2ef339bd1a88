"""What is measured: the public API, as a user calls it."""

import time
from collections.abc import Callable
from threading import Event, Thread
from typing import Self

from coordinator import Coordinator, Message
from coordinator.cli.bench.stats import Timing
from coordinator.cli.bench.workload import Workload, chunks, number_of

# Nothing comes for so long: what is missing is lost, and is told as such.
_SILENCE_LIMIT_S = 15.0
_BATCH_MESSAGES = 500
_IDLE_PAUSE_S = 0.02


class _Watchdog:
    """Ends a run that gets nothing any more, by closing or stopping what runs: a loss must end the bench, too."""

    def __init__(self, end: Callable[[], None]) -> None:
        self.progress = 0
        self._end = end
        self._over = Event()
        self._thread = Thread(target=self._watch, name="bench watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        seen = -1
        while seen != self.progress and not self._over.is_set():
            seen = self.progress
            self._over.wait(_SILENCE_LIMIT_S)
        if not self._over.is_set():
            self._end()


Consumption = tuple[Timing, list[int]]


class Ours:
    """Everything that the bench asks of a Coordinator."""

    def __init__(self, app: Coordinator, partition_count: int) -> None:
        self._app = app
        self._partition_count = partition_count

    def create_topic(self, topic: str, partition_count: int | None = None) -> None:
        self._app.create_topic(topic, partitions=partition_count or self._partition_count)

    def publish_one_by_one(self, topic: str, workload: Workload) -> Timing:
        """Publish each message in a transaction of its own, one after the other."""
        messages = workload.outgoing()
        calls_s = []
        started_s = time.perf_counter()
        for message in messages:
            called_s = time.perf_counter()
            self._app.publish(topic, message.value, key=message.key)
            calls_s.append(time.perf_counter() - called_s)
        return Timing(workload.count, time.perf_counter() - started_s, calls_s)

    def publish_batched(self, topic: str, workload: Workload, batch_size: int) -> Timing:
        """Publish `batch_size` a call."""
        messages = workload.outgoing()
        calls_s = []
        started_s = time.perf_counter()
        for batch in chunks(messages, batch_size):
            called_s = time.perf_counter()
            self._app.publish_many(topic, batch)
            calls_s.append(time.perf_counter() - called_s)
        return Timing(workload.count, time.perf_counter() - started_s, calls_s)

    def consume_batches(self, topic: str, group: str, count: int) -> Consumption:
        """Read all by `batches()` and ack each message; the time ends when the last ack is committed."""
        payloads: list[bytes] = []
        started_s, first_count = 0.0, 0
        with self._app.consumer(topic, group=group) as consumer:
            for messages in consumer.batches(max_messages=_BATCH_MESSAGES, timeout_s=_SILENCE_LIMIT_S):
                if not messages:
                    break
                if not payloads:
                    started_s, first_count = time.perf_counter(), len(messages)
                for message in messages:
                    payloads.append(message.payload)
                    message.ack()
                if len(payloads) >= count:
                    break
            consumer.commit()
            elapsed_s = time.perf_counter() - started_s
        return Timing(len(payloads) - first_count, elapsed_s), [number_of(payload) for payload in payloads]

    def consume_iterator(self, topic: str, group: str, count: int) -> Consumption:
        """Read all one by one and ack each message; the time ends when the last ack is committed."""
        payloads: list[bytes] = []
        started_s = 0.0
        with self._app.consumer(topic, group=group) as consumer, _Watchdog(consumer.close) as watchdog:
            for message in consumer:
                if not payloads:
                    started_s = time.perf_counter()
                payloads.append(message.payload)
                message.ack()
                watchdog.progress = len(payloads)
                if len(payloads) >= count:
                    break
            consumer.commit()
            elapsed_s = time.perf_counter() - started_s
        return Timing(len(payloads) - 1, elapsed_s), [number_of(payload) for payload in payloads]

    def consume_subscribe(self, topic: str, group: str, count: int) -> Consumption:
        """Read all by a handler that does nothing but note them; the time ends when the last ack is committed."""
        payloads: list[bytes] = []
        started_s = ended_s = 0.0
        # One of its own: `run` runs all that was ever subscribed.
        with Coordinator(self._app.dsn, schema=self._app.schema, client_id="bench") as app:

            @app.subscribe(topic, group=group)
            def handle(message: Message) -> None:
                nonlocal started_s, ended_s
                if not payloads:
                    started_s = time.perf_counter()
                payloads.append(message.payload)
                watchdog.progress = len(payloads)
                if len(payloads) >= count:
                    # All others were acked before, so they are written with it.
                    message.ack(wait=True)
                    ended_s = time.perf_counter()
                    app.stop()

            with _Watchdog(app.stop) as watchdog:
                app.run(install_signal_handlers=False)
        # Where messages were lost there is no end: that is told as a loss, and the rate means nothing.
        elapsed_s = max(ended_s - started_s, 1e-9) if ended_s else _SILENCE_LIMIT_S
        return Timing(max(len(payloads) - 1, 0), elapsed_s), [number_of(payload) for payload in payloads]

    def latencies_s(self, topic: str, group: str, count: int) -> tuple[list[float], list[int]]:
        """Publish to an idle topic, one message at a time; each from before the call of publish until it is in hand."""
        received_s: dict[int, float] = {}
        numbers: list[int] = []
        ready, done = Event(), Event()

        def consume() -> None:
            with self._app.consumer(topic, group=group) as consumer, _Watchdog(consumer.close):
                ready.set()
                for message in consumer:
                    number = number_of(message.payload)
                    received_s.setdefault(number, time.perf_counter())
                    numbers.append(number)
                    message.ack()
                    if len(received_s) >= count + 1:
                        break
            done.set()

        thread = Thread(target=consume, name="bench consumer", daemon=True)
        thread.start()
        ready.wait(_SILENCE_LIMIT_S)
        workload = Workload(count + 1, 200)
        sent_s = {}
        for number in range(workload.count):
            sent_s[number] = time.perf_counter()
            self._app.publish(topic, workload.payload(number), key=workload.key(number))
            # The first one is the start signal: it is sent into a group that may still be joining, and is not counted.
            time.sleep(_IDLE_PAUSE_S if number else 1.0)
        done.wait(_SILENCE_LIMIT_S)
        return [
            received_s[number] - sent_s[number] for number in range(1, workload.count) if number in received_s
        ], numbers
