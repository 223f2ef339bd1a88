"""The tables of the demo's imaginary service, and every statement on them.

The demo plays a user: a service with tables and a driver of its own. This SQL is that service's, which is why it stands
here, next to its caller, and not in sql/; it is also why the demo imports psycopg. Nothing here reads the coordinator's
tables.
"""

from collections.abc import Sequence
from typing import Any, LiteralString

import psycopg

from coordinator.cli.demo.flights import CarrierDelay, Flight, carrier_of
from coordinator.cli.demo.plan import SERVICE_SCHEMA
from coordinator.db.translate import translated
from coordinator.errors import ConfigError
from coordinator.model import Message

Connection = psycopg.Connection[Any]

# Held by a run from its beginning to its end: two runs in one database would drop each other's tables.
_RUN_LOCK = "select pg_try_advisory_lock(hashtextextended('pgcoord.demo', 0))"

_MARK = "Tables of `coordinator demo`; dropped by its next run."

_OWNER: LiteralString = (
    "select obj_description(n.oid, 'pg_namespace') from pg_namespace n where n.nspname = 'coordinator_demo_service'"
)

_CREATE: LiteralString = """
drop schema if exists coordinator_demo_service cascade;
create schema coordinator_demo_service;
comment on schema coordinator_demo_service is 'Tables of `coordinator demo`; dropped by its next run.';
-- A business row, written in the transaction that publishes.
create table coordinator_demo_service.departures (nr int primary key, flight text not null, tail text);
-- Every hand-over that a handler committed, duplicates included. No unique constraint, on purpose.
create table coordinator_demo_service.deliveries (
    seq bigint generated always as identity primary key, group_name text not null, process text not null,
    nr int not null, "partition" int not null, "offset" bigint not null, key text, attempt int not null);
-- The messages whose delay was booked. Its primary key makes a second delivery harmless.
create table coordinator_demo_service.ledger (message_id uuid primary key, nr int not null, carrier text not null);
create table coordinator_demo_service.carrier_delays (
    carrier text primary key, flights int not null, arrived int not null, delay_min bigint not null);
"""

_INSERT_DEPARTURES: LiteralString = """
insert into coordinator_demo_service.departures (nr, flight, tail)
select d.nr, d.flight, d.tail from unnest(%s::int[], %s::text[], %s::text[]) as d(nr, flight, tail)
"""

_INSERT_DELIVERIES: LiteralString = """
insert into coordinator_demo_service.deliveries (group_name, process, nr, "partition", "offset", key, attempt)
select %s, %s, d.nr, d.partition, d."offset", d.key, d.attempt
from unnest(%s::int[], %s::int[], %s::bigint[], %s::text[], %s::int[]) with ordinality
     as d(nr, partition, "offset", key, attempt, ord)
order by d.ord
"""

# One statement, so one transaction: the sum moves exactly when the ledger row is new.
_BOOK: LiteralString = """
with delivered as (
    insert into coordinator_demo_service.deliveries (group_name, process, nr, "partition", "offset", key, attempt)
    values (%(group)s, %(process)s, %(nr)s, %(partition)s, %(offset)s, %(key)s, %(attempt)s)
), booked as (
    insert into coordinator_demo_service.ledger (message_id, nr, carrier)
    values (%(message_id)s, %(nr)s, %(carrier)s)
    on conflict (message_id) do nothing
    returning carrier
)
insert into coordinator_demo_service.carrier_delays as c (carrier, flights, arrived, delay_min)
select b.carrier, 1, case when %(delay_min)s::int is null then 0 else 1 end, coalesce(%(delay_min)s::int, 0)
from booked b
on conflict (carrier) do update set
    flights = c.flights + excluded.flights,
    arrived = c.arrived + excluded.arrived,
    delay_min = c.delay_min + excluded.delay_min
"""

_COUNT_ROWS: LiteralString = """
select (select count(*) from coordinator_demo_service.departures),
       (select count(*) from coordinator_demo_service.ledger)
"""

_SELECT_DELAYS: LiteralString = (
    "select c.carrier, c.flights, c.arrived, c.delay_min from coordinator_demo_service.carrier_delays c"
)

# What was first seen after a later message of the same key had been seen: compared with the running maximum before it.
_COUNT_DELIVERIES: LiteralString = """
with first_seen as (
    select distinct on (d.nr) d.nr, d.seq, d."partition", d."offset", d.key from coordinator_demo_service.deliveries d
    where d.group_name = %(group)s and d.nr between 0 and %(count)s - 1
    order by d.nr, d.seq
), behind as (
    select f.key, f."offset" < max(f."offset") over (
        partition by f."partition", f.key order by f.seq rows between unbounded preceding and 1 preceding) as overtaken
    from first_seen f
)
select count(*) filter (where d.nr between 0 and %(count)s - 1),
       count(distinct d.nr) filter (where d.nr between 0 and %(count)s - 1),
       count(*) filter (where d.nr not between 0 and %(count)s - 1),
       (select count(*) from behind b where b.overtaken and b.key is not null)
from coordinator_demo_service.deliveries d
where d.group_name = %(group)s
"""


def connect(dsn: str) -> Connection:
    """Open a connection of the service's own, in autocommit: each statement is a transaction."""
    with translated():
        return psycopg.connect(dsn, autocommit=True, application_name="coordinator demo")


def lock_run(connection: Connection) -> None:
    """Take the right to run in this database, until the connection ends.

    Raises:
        ConfigError: If another run has it.
    """
    if not _one_row(connection.execute(_RUN_LOCK))[0]:
        raise ConfigError("another `coordinator demo` runs in this database: wait for its end, or use another database")


def create(connection: Connection) -> None:
    """Make the service's tables, empty; those of an earlier run are dropped.

    Raises:
        ConfigError: If the schema exists and is somebody else's.
    """
    with connection.transaction():
        row = connection.execute(_OWNER).fetchone()
        if row is not None and row[0] != _MARK:
            raise ConfigError(f"schema {SERVICE_SCHEMA!r} exists and is not the demo's: it is left as it is")
        connection.execute(_CREATE)


def insert_departures(connection: Connection, flights: Sequence[Flight]) -> None:
    connection.execute(
        _INSERT_DEPARTURES, ([f["nr"] for f in flights], [f["flight"] for f in flights], [f["tail"] for f in flights])
    )


def insert_deliveries(connection: Connection, group: str, process: str, messages: Sequence[Message]) -> None:
    """Note a batch of deliveries, in their order, in one statement."""
    connection.execute(
        _INSERT_DELIVERIES,
        (
            group,
            process,
            [message.value["nr"] for message in messages],
            [message.partition for message in messages],
            [message.offset for message in messages],
            [message.key for message in messages],
            [message.attempt for message in messages],
        ),
    )


def book(connection: Connection, group: str, process: str, message: Message) -> None:
    """Note one delivery and, if this is the message's first, add its delay to its carrier's sum; one transaction."""
    flight = message.value
    connection.execute(
        _BOOK,
        {
            "group": group,
            "process": process,
            "nr": flight["nr"],
            "partition": message.partition,
            "offset": message.offset,
            "key": message.key,
            "attempt": message.attempt,
            "message_id": message.message_id,
            "carrier": carrier_of(flight),
            "delay_min": flight["arr_delay_min"],
        },
    )


def count_rows(connection: Connection) -> tuple[int, int]:
    """Return how many business rows and ledger rows there are."""
    rows, ledger = _one_row(connection.execute(_COUNT_ROWS))
    return rows, ledger


def count_deliveries(connection: Connection, group: str, message_count: int) -> tuple[int, int, int, int]:
    """Return deliveries, different messages among them, deliveries of unknown messages, and overtaken ones."""
    deliveries, seen, phantoms, overtaken = _one_row(
        connection.execute(_COUNT_DELIVERIES, {"group": group, "count": message_count})
    )
    return deliveries, seen, phantoms, overtaken


def select_delays(connection: Connection) -> dict[str, CarrierDelay]:
    return {row[0]: CarrierDelay(*row[1:]) for row in connection.execute(_SELECT_DELAYS)}


def _one_row(cursor: psycopg.Cursor[Any]) -> tuple[Any, ...]:
    row = cursor.fetchone()
    assert row is not None  # only queries that return one row
    return tuple(row)
