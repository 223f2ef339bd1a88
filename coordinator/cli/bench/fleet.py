"""Consumers of one group, spread over processes, that note what they get and when; all on this machine, so on one clock."""

import multiprocessing
import os
import time
from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any, Self

from coordinator import Coordinator
from coordinator.cli.bench.workload import number_of
from coordinator.settings import Settings

GROUP = "bench"
# How long a consumer waits for messages before it looks whether it is to end.
_LOOK_S = 0.2
_BATCH_MESSAGES = 500
_EXIT_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Receipts:
    """What consumers got: numbers of messages, and when each was in hand, in seconds of this machine's clock; parallel."""

    numbers: Sequence[int]
    at_s: Sequence[float]


class Fleet:
    """`count` consumers in as many processes as there are processors; each consumer is a member with connections of its own."""

    def __init__(self, dsn: str, schema: str, topic: str, count: int, prefetch: int | None) -> None:
        # Spawned: a fork would copy connections and threads.
        context = multiprocessing.get_context("spawn")
        self._stop = context.Event()
        self._received: Any = context.Value("q", 0)
        self._pipes: list[Connection] = []
        self._processes = []
        process_count = min(count, os.cpu_count() or 1)
        for place in range(process_count):
            ours, theirs = context.Pipe(duplex=False)
            share = len(range(place, count, process_count))
            process = context.Process(
                target=_consume,
                args=(dsn, schema, topic, share, prefetch, self._stop, self._received, theirs),
                name=f"bench consumers {place}",
                daemon=True,
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        for process in self._processes:
            process.join(_EXIT_LIMIT_S)
            if process.is_alive():
                process.kill()
        for pipe in self._pipes:
            pipe.close()

    @property
    def received_count(self) -> int:
        """Messages handed over so far, those that came again included."""
        return int(self._received.value)

    @property
    def is_running(self) -> bool:
        return all(process.is_alive() for process in self._processes)

    def finish(self) -> Receipts:
        """End the consumers, acks committed, and return what they got; what a dead process got is missing."""
        self._stop.set()
        numbers, at_s = array("q"), array("d")
        for pipe in self._pipes:
            with suppress(EOFError):
                some_numbers, some_at_s = pipe.recv()
                numbers.extend(some_numbers)
                at_s.extend(some_at_s)
        return Receipts(numbers, at_s)


def _consume(
    dsn: str, schema: str, topic: str, count: int, prefetch: int | None, stop: Any, received: Any, pipe: Connection
) -> None:
    """Run in a process of its own: `count` consumers, a thread each."""
    settings = Settings() if prefetch is None else Settings(prefetch=prefetch)
    notes: list[tuple[array[int], array[float]]] = [(array("q"), array("d")) for _ in range(count)]

    def run(numbers: "array[int]", at_s: "array[float]") -> None:
        with (
            Coordinator(dsn, schema=schema, settings=settings, client_id="bench") as app,
            app.consumer(topic, group=GROUP) as consumer,
        ):
            for messages in consumer.batches(_BATCH_MESSAGES, timeout_s=_LOOK_S):
                for message in messages:
                    numbers.append(number_of(message.payload))
                    at_s.append(time.time())
                    message.ack()
                with received.get_lock():
                    received.value += len(messages)
                if stop.is_set():
                    break

    threads = [Thread(target=run, args=note, name=f"bench consumer {place}") for place, note in enumerate(notes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    numbers, at_s = array("q"), array("d")
    for some_numbers, some_at_s in notes:
        numbers.extend(some_numbers)
        at_s.extend(some_at_s)
    pipe.send((numbers, at_s))
