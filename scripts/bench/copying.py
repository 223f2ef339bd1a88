"""Would COPY publish large batches faster than the function does? Measured without being built into the product.

    PYTHONPATH=. python scripts/bench/copying.py [--dsn DSN] [--messages 200000] [--batch 10000] [--repeat 5] [--json]

Four ways in turns, on one server, from the same values: a bare table's multi-row INSERT (coordinator/cli/bench/bare.py),
`publish_many`, the function alone with arrays that are encoded already, and COPY in binary form into the topic's segment, which
is preceded by the locks and the offsets, as every guarantee needs them: partitions by key, locks, segment, offsets, segment
again, in one statement whose answer the client needs before its first row. The COPY leaves out what would make it slower still:
limits, dedup, wake-ups, and that partitions and segment have to be asked for under the publisher's rights.
"""

import argparse
import json
import os
import statistics
import struct
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]

from coordinator import Coordinator, Outgoing  # noqa: E402 - the path is set above
from coordinator.cli.bench.bare import Bare  # noqa: E402
from coordinator.cli.bench.workload import Workload, chunks  # noqa: E402
from coordinator.db import publish  # noqa: E402
from coordinator.model import BYTES_CONTENT  # noqa: E402
from coordinator.producer.encode import JSON, publish_call  # noqa: E402
from coordinator.testing.databases import Databases  # noqa: E402
from coordinator.testing.server import start_server  # noqa: E402

PARTITIONS = 8
RESERVE = """
with topic as materialized (select t from coordinator.topics t where t.name = %s),
placed as materialized (
    select array(select coordinator.partition_of(u.key, (topic.t).partitions) from unnest(%s::text[]) as u(key)) as partitions,
           topic.t from topic),
locked as materialized (select placed.*, coordinator.enlist_publisher(placed.t, placed.partitions) from placed),
taken as materialized (
    select locked.*, pg_sequence_last_value((locked.t).segment_sequence) as segment,
           array(select nextval((locked.t).offset_sequences[u.p + 1]) from unnest(locked.partitions) as u(p)) as offsets
    from locked)
select taken.partitions, taken.offsets, taken.segment, (taken.t).messages::text || '_s' || taken.segment,
       extract(epoch from coordinator.now_() - '2000-01-01 00:00+00')::float8
from taken
"""
HEAD = struct.Struct("!hiiiiiqiq")
CONTENT = struct.pack("!i", len(BYTES_CONTENT)) + BYTES_CONTENT.encode()
NO_HEADERS = struct.pack("!i", -1)
LENGTH = struct.Struct("!i").pack
COLUMNS = '(segment, "partition", "offset", published_at, message_id, key, content_type, headers, payload)'


def timed(work: Callable[[Sequence[Outgoing]], object], batches: Sequence[Sequence[Outgoing]]) -> float:
    started_s = time.perf_counter()
    for batch in batches:
        work(batch)
    return sum(map(len, batches)) / (time.perf_counter() - started_s)


def copy(connection: psycopg.Connection[Any], topic: str, batch: Sequence[Outgoing]) -> None:
    """Reserve, then copy, in one transaction; ids are the client's."""
    with connection.transaction(), connection.cursor(binary=True) as cursor:
        partitions, offsets, segment, table, at_s = (
            cursor.execute(RESERVE, (topic, [message.key for message in batch])).fetchone() or ()
        )
        ids = os.urandom(16 * len(batch))
        at_us, sixteen = int(at_s * 1e6), LENGTH(16)
        parts = [b"PGCOPY\n\xff\r\n\0" + bytes(8)]
        for place, message in enumerate(batch):
            key, payload = (message.key or "").encode(), message.value
            assert isinstance(payload, bytes)
            parts += (
                HEAD.pack(9, 4, segment, 4, partitions[place], 8, offsets[place], 8, at_us),
                sixteen,
                ids[16 * place : 16 * place + 16],
                LENGTH(len(key)),
                key,
                CONTENT,
                NO_HEADERS,
                LENGTH(len(payload)),
                payload,
            )
        parts.append(b"\xff\xff")
        with cursor.copy(f"copy {table} {COLUMNS} from stdin (format binary)") as stream:  # type: ignore[arg-type]
            stream.write(b"".join(parts))


def measure(dsn: str, messages: int, batch_size: int, repeats: int) -> dict[str, list[float]]:
    """Rates by way, one per repeat; each repeat has a topic per way and begins with another way."""
    found: dict[str, list[float]] = {"bare": [], "publish_many": [], "function": [], "copy": []}
    workload = Workload(messages, 200)
    batches = list(chunks(workload.outgoing(), batch_size))
    with psycopg.connect(dsn, autocommit=True) as connection, Coordinator(dsn) as app:
        bare = Bare(connection, PARTITIONS)
        bare.create()
        for repeat in range(repeats):
            for way in ("publish_many", "function", "copy"):
                app.create_topic(f"{way}-{repeat}", PARTITIONS)
            # Encoded before the clock runs: what this way leaves is the server's part.
            calls = [
                publish_call(f"function-{repeat}", batch, wake=True, codec=JSON, limit_bytes=None) for batch in batches
            ]
            ways = {
                "bare": lambda: bare.publish(workload, batch_size).rate,
                "publish_many": lambda: timed(lambda batch: app.publish_many(f"publish_many-{repeat}", batch), batches),  # noqa: B023
                "function": lambda: whole(connection, f"function-{repeat}", calls, messages),  # noqa: B023
                "copy": lambda: timed(lambda batch: copy(connection, f"copy-{repeat}", batch), batches),  # noqa: B023
            }
            names = list(ways)
            for name in names[repeat % 4 :] + names[: repeat % 4]:
                found[name].append(ways[name]())
            bare.empty()
            for way in ("publish_many", "function", "copy"):
                topic = f"{way}-{repeat}"
                assert sum(count for (count,) in seen(connection, topic)) == messages
                app.delete_topic(topic, force=True)
        bare.drop()
    return found


def seen(connection: psycopg.Connection[Any], topic: str) -> list[tuple[int]]:
    table = connection.execute("select messages::text from coordinator.topics where name = %s", (topic,)).fetchone()
    assert table is not None
    return connection.execute(f"select count(*) from {table[0]}").fetchall()  # type: ignore[arg-type]


def whole(connection: psycopg.Connection[Any], topic: str, calls: Sequence[Any], messages: int) -> float:
    started_s = time.perf_counter()
    for call in calls:
        publish.run(connection, "coordinator", topic, call)
    return messages / (time.perf_counter() - started_s)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dsn", help="a server's superuser; a database is made on it and dropped")
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--batch", type=int, default=10_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        dsn = arguments.dsn or stack.enter_context(start_server()).dsn
        databases = stack.enter_context(Databases(dsn))
        found = measure(databases.create(), arguments.messages, arguments.batch, arguments.repeat)
    if arguments.json:
        print(json.dumps(found))
        return 0
    print(f"load average {os.getloadavg()[0]:.1f}; {arguments.messages:,} messages, {arguments.batch:,} a batch")
    for name, rates in found.items():
        ratios = [rate / bare for rate, bare in zip(rates, found["bare"], strict=True)]
        print(
            f"{name}: {statistics.median(rates):,.0f}/s ({min(rates):,.0f} to {max(rates):,.0f}), "
            f"of bare {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
