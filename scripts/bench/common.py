"""What the measurements of this folder share: a server with a fresh database, and one member's reading of a backlog."""

import argparse
import logging
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]

from coordinator import Coordinator, Outgoing, Settings  # noqa: E402 - the path is set above
from coordinator.cli.bench.crowd import Lap  # noqa: E402
from coordinator.cli.bench.workload import Workload, chunks, number_of  # noqa: E402
from coordinator.testing.databases import Databases  # noqa: E402
from coordinator.testing.server import start_server  # noqa: E402

BATCH = 1000

# Every message that is given back would be told on stderr.
logging.getLogger("coordinator").setLevel(logging.ERROR)

SILENCE_S = 20.0
JOIN_LIMIT_S = 60.0


def parser(description: str | None) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument(
        "--dsn", help="a server's superuser; a database is made on it and dropped; else a server is started"
    )
    made.add_argument("--json", action="store_true")
    return made


@contextmanager
def fresh(dsn: str | None) -> Iterator[tuple[str, psycopg.Connection[Any]]]:
    """Lend a database with the schema in it, and a connection to it in autocommit mode."""
    with ExitStack() as stack:
        server = dsn or stack.enter_context(start_server()).dsn
        databases = stack.enter_context(Databases(server))
        made = databases.create()
        yield made, stack.enter_context(psycopg.connect(made, autocommit=True))


def publish_apart(app: Coordinator, topic: str, count: int, payload_bytes: int = 200) -> None:
    """Publish messages with a key of their own each: in key order all of them can be in flight at once."""
    payload = Workload(1, payload_bytes).payload(0)
    for start in range(0, count, BATCH):
        app.publish_many(topic, [Outgoing(payload, key=f"apart-{n}") for n in range(start, min(start + BATCH, count))])


def publish(app: Coordinator, topic: str, count: int, payload_bytes: int = 200) -> None:
    """Publish a backlog of 1,000 keys, without holding all of it in memory."""
    workload = Workload(BATCH, payload_bytes)
    batch = workload.outgoing()
    for _ in range(-(-count // BATCH)):
        app.publish_many(topic, batch)


def consume(
    lap: Lap, dsn: str, topic: str, group: str, partitions: int, count: int, settings: Settings, hold: int = 0
) -> tuple[float, int, int]:
    """Be a group's only member: read `count` messages in batches and ack each, after holding some in flight for all the time.

    Returns:
        The rate; the most memory that this process has had, in KiB; how many messages were in flight at the end.
    """
    done = 0
    held: list[Any] = []
    with Coordinator(dsn, settings=settings) as app, app.consumer(topic, group=group) as consumer:
        if not hold:
            consumer.pause()
        deadline_s = time.monotonic() + JOIN_LIMIT_S
        while consumer.status().partitions < partitions:
            assert time.monotonic() < deadline_s, "the group was not joined in time"
            time.sleep(0.05)
        while len(held) < hold:
            some = consumer.poll(min(500, hold - len(held)), SILENCE_S)
            assert some, f"nothing came for {SILENCE_S:g} s, with {len(held)} of {hold} held"
            held += some
        lap.start()
        started_s = time.perf_counter()
        consumer.resume()
        for messages in consumer.batches(500, timeout_s=SILENCE_S):
            assert messages, f"nothing came for {SILENCE_S:g} s, with {done} of {count} read"
            for message in messages:
                number_of(message.payload)
                message.ack()
            done += len(messages)
            if done >= count:
                break
        consumer.commit()
        elapsed_s = time.perf_counter() - started_s
        lap.stop()
        return done / elapsed_s, peak_kib(), len(held)


def holding(hold: int) -> Settings:
    """Settings with which so many messages may be in flight beside those that are worked on, and do not come back meanwhile."""
    if not hold:
        return Settings()
    return Settings(max_in_flight=hold + 1000, visibility_timeout_s=3600.0)


def peak_kib() -> int:
    """The most memory that this process has had at once."""
    status = Path("/proc/self/status").read_text("ascii", "replace")
    return int(status.partition("VmHWM:")[2].split()[0])


def spread(values: Sequence[float], form: str = ",.0f") -> str:
    """Median, lowest and highest."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def head() -> str:
    return f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors"


__all__ = [
    "Workload",
    "chunks",
    "consume",
    "fresh",
    "head",
    "holding",
    "parser",
    "peak_kib",
    "publish",
    "publish_apart",
    "spread",
]
