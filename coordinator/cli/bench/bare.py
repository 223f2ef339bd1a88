"""What the same driver and the same server do without us: one plain table, one cursor row.

This is the yardstick, not the product, so its SQL stands here and not in sql/. It is no log to be used: it has no
groups, no fencing and no wake-ups, and it loses messages as soon as two publishers overlap.
"""

import time
from collections.abc import Sequence
from typing import Any, LiteralString

import psycopg
from psycopg.adapt import AdaptersMap

from coordinator.cli.bench.stats import Timing
from coordinator.cli.bench.workload import Workload, chunks, number_of
from coordinator.db import arrays
from coordinator.db.drive import drive
from coordinator.db.pooler import pooler_found
from coordinator.db.translate import translated
from coordinator.model import BYTES_CONTENT

BATCH = 1000
PAGE = 1000

_ADAPTERS = AdaptersMap(psycopg.adapters)
arrays.register(_ADAPTERS)

_CREATE: LiteralString = """
drop schema if exists coordinator_bench_bare cascade;
create schema coordinator_bench_bare;
create table coordinator_bench_bare.messages (
    id bigint generated always as identity primary key, "partition" int not null, published_at timestamptz not null,
    message_id uuid not null, key text, content_type text, headers jsonb, payload bytea not null);
create table coordinator_bench_bare.cursors (name text primary key, position bigint not null);
insert into coordinator_bench_bare.cursors (name, position) values ('bench', 0);
"""

_DROP: LiteralString = "drop schema if exists coordinator_bench_bare cascade"

_TRUNCATE: LiteralString = "truncate coordinator_bench_bare.messages restart identity"

_REWIND: LiteralString = "update coordinator_bench_bare.cursors set position = 0"

_INSERT: LiteralString = """
insert into coordinator_bench_bare.messages ("partition", published_at, message_id, key, content_type, headers, payload)
select u.partition, clock_timestamp(), gen_random_uuid(), u.key, u.content_type, u.headers::jsonb, u.payload
from unnest(%s::int[], %s::text[], %s::text[], %s::text[], %s::bytea[])
     as u(partition, key, content_type, headers, payload)
"""

_READ: LiteralString = """
select m.id, m."partition", m.published_at, m.message_id, m.key, m.headers, m.content_type, m.payload
from coordinator_bench_bare.messages m where m.id > %s order by m.id limit 1000
"""

_ADVANCE: LiteralString = "update coordinator_bench_bare.cursors set position = %s where name = %s"

_ADD_CURSOR: LiteralString = """
insert into coordinator_bench_bare.cursors (name, position) values (%s, 0) on conflict (name) do update set position = 0
"""

_CURSOR = "bench"


class _Cursor(psycopg.Cursor[Any]):
    adapters = property(lambda _self: _ADAPTERS)


def connect(dsn: str) -> psycopg.Connection[Any]:
    """Open a connection as psycopg makes it, in autocommit; behind a pooler it prepares no statements, as ours do not."""
    with translated():
        connection = psycopg.connect(dsn, autocommit=True, application_name="coordinator bench")
    if drive(pooler_found(connection.info.backend_pid), connection, "coordinator"):
        connection.prepare_threshold = None
    return connection


class Bare:
    """The yardstick, on a connection of its own in autocommit mode."""

    def __init__(self, connection: psycopg.Connection[Any], partition_count: int) -> None:
        self._connection = connection
        self._partition_count = partition_count

    def create(self) -> None:
        self._connection.execute(_CREATE)

    def drop(self) -> None:
        self._connection.execute(_DROP)

    def empty(self) -> None:
        self._connection.execute(_TRUNCATE)
        self.rewind()

    def rewind(self) -> None:
        self._connection.execute(_REWIND)

    def publish(self, workload: Workload, batch_size: int) -> Timing:
        """Insert all rows, `batch_size` per statement."""
        numbers = range(workload.count)
        payloads = [workload.payload(number) for number in numbers]
        keys = [workload.key(number) for number in numbers]
        calls_s = []
        started_s = time.perf_counter()
        for some_payloads, some_keys in zip(chunks(payloads, batch_size), chunks(keys, batch_size), strict=True):
            called_s = time.perf_counter()
            self._insert(some_payloads, some_keys)
            calls_s.append(time.perf_counter() - called_s)
        return Timing(workload.count, time.perf_counter() - started_s, calls_s)

    def add_cursor(self, name: str) -> None:
        """Have a cursor of that name stand at the beginning."""
        self._connection.execute(_ADD_CURSOR, (name,))

    def consume(self, name: str = _CURSOR) -> tuple[Timing, list[int]]:
        """Read to the end by pages, moving the cursor's row after each; the clock starts with the first page in hand."""
        payloads: list[bytes] = []
        started_s, first_count, position = 0.0, 0, 0
        while rows := _Cursor(self._connection).execute(_READ, (position,), binary=True).fetchall():
            if not payloads:
                started_s, first_count = time.perf_counter(), len(rows)
            # One by one, because a user of messages looks at each of them, too.
            for row in rows:
                payloads.append(row[7])  # noqa: PERF401
            position = rows[-1][0]
            self._connection.execute(_ADVANCE, (position, name))
        timing = Timing(len(payloads) - first_count, time.perf_counter() - started_s)
        return timing, [number_of(payload) for payload in payloads]

    def _insert(self, payloads: Sequence[bytes], keys: Sequence[str]) -> None:
        count = len(payloads)
        _Cursor(self._connection).execute(
            _INSERT,
            (
                arrays.int_array([place % self._partition_count for place in range(count)]),
                arrays.text_array(keys),
                arrays.text_array([BYTES_CONTENT] * count),
                arrays.text_array([None] * count),
                arrays.bytea_array(payloads),
            ),
            binary=True,
        )
