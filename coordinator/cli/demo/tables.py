"""The tables of the demo's imaginary service, and every statement on them.

The demo plays a user: a service with tables and a driver of its own. This SQL is that service's, which is why it stands
here, next to its caller, and not in sql/; it is also why the demo imports psycopg. Nothing here reads the coordinator's
tables.

No table of `delays` helps it to book a message once: no unique constraint, no `on conflict`, no look whether a row is there
already. What keeps its sums right is the ack in the same transaction, or nothing is.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, LiteralString

import psycopg

from coordinator.cli.demo.facts import Effects
from coordinator.cli.demo.flights import CarrierDelay, Flight, booking_of, carrier_of
from coordinator.cli.demo.plan import SERVICE_SCHEMA
from coordinator.db.translate import translated
from coordinator.errors import ConfigError
from coordinator.model import Message

Connection = psycopg.Connection[Any]

# Held by a run from its beginning to its end: two runs in one database would drop each other's tables.
_RUN_LOCK = "select pg_try_advisory_xact_lock(hashtextextended('pgcoord.demo', 0))"

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
-- Every hand-over, noted before anything else and committed at once, duplicates included.
create table coordinator_demo_service.deliveries (
    seq bigint generated always as identity primary key, group_name text not null, process text not null,
    nr int not null, "partition" int not null, "offset" bigint not null, key text, attempt int not null);
-- One row per effect. A message that was booked twice has two.
create table coordinator_demo_service.ledger (
    seq bigint generated always as identity, nr int not null, "partition" int not null, "offset" bigint not null, key text);
create table coordinator_demo_service.carrier_delays (
    carrier text primary key, flights int not null default 0, arrived int not null default 0,
    delay_min bigint not null default 0, cancelled int not null default 0);
"""

_INSERT_DEPARTURES: LiteralString = """
insert into coordinator_demo_service.departures (nr, flight, tail)
select d.nr, d.flight, d.tail from unnest(%s::int[], %s::text[], %s::text[]) as d(nr, flight, tail)
"""

# Notes must outlive processes, not the server: this COMMIT does not wait for the disk. Said for the statement's own
# transaction, since behind a pooler the session is somebody else's afterwards, whose COMMITs have to wait.
_INSERT_DELIVERIES: LiteralString = """
with here as materialized (select set_config('synchronous_commit', 'off', true))
insert into coordinator_demo_service.deliveries (group_name, process, nr, "partition", "offset", key, attempt)
select %s, %s, d.nr, d.partition, d."offset", d.key, d.attempt
from unnest(%s::int[], %s::int[], %s::bigint[], %s::text[], %s::int[]) with ordinality
     as d(nr, partition, "offset", key, attempt, ord), here
order by d.ord
"""

_INSERT_CARRIERS: LiteralString = (
    "insert into coordinator_demo_service.carrier_delays (carrier) select unnest(%s::text[])"
)

_INSERT_LEDGER: LiteralString = """
insert into coordinator_demo_service.ledger (nr, "partition", "offset", key) values (%s, %s, %s, %s)
"""

_ADD_DELAY: LiteralString = """
update coordinator_demo_service.carrier_delays
set flights = flights + %s, arrived = arrived + %s, delay_min = delay_min + %s, cancelled = cancelled + %s
where carrier = %s
"""

_COUNT_DEPARTURES: LiteralString = "select count(*) from coordinator_demo_service.departures"

_SELECT_DELAYS: LiteralString = (
    "select c.carrier, c.flights, c.arrived, c.delay_min, c.cancelled from coordinator_demo_service.carrier_delays c"
)

_LAST_DELIVERY: LiteralString = "select coalesce(max(d.seq), 0) from coordinator_demo_service.deliveries d"

_SELECT_DELIVERED: LiteralString = """
select d.nr from coordinator_demo_service.deliveries d where d.group_name = %s and d.seq > %s order by d.seq
"""

_COUNT_HANDED_OVER: LiteralString = """
select count(*) from coordinator_demo_service.deliveries d where d.group_name = %s and d.nr = %s
"""

_SELECT_EFFECTS: LiteralString = "select l.nr from coordinator_demo_service.ledger l order by l.seq"

_COUNT_OVERTAKEN_EFFECTS: LiteralString = """
with behind as (
    select l."offset" < max(l."offset") over (
        partition by l."partition", l.key order by l.seq rows between unbounded preceding and 1 preceding) as overtaken
    from coordinator_demo_service.ledger l
    where l.key is not null and l.nr <> all (%s)
)
select count(*) from behind b where b.overtaken
"""

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
    """Open a connection of the service's own, in autocommit: each statement is a transaction.

    It prepares no statements, which are gone in the next transaction where a pooler lends sessions.
    """
    with translated():
        return psycopg.connect(dsn, autocommit=True, prepare_threshold=None, application_name="coordinator demo")


@contextlib.contextmanager
def sole_run(dsn: str) -> Iterator[None]:
    """Have the right to run in this database, by the lock of a transaction: a pooler leaves it the same session.

    Raises:
        ConfigError: If another run has it.
    """
    with connect(dsn) as connection, connection.transaction(), translated():
        connection.execute("set local idle_in_transaction_session_timeout = 0")
        if not _one_row(connection.execute(_RUN_LOCK))[0]:
            raise ConfigError(
                "another `coordinator demo` runs in this database: wait for its end, or use another database"
            )
        yield


def create(connection: Connection, carriers: Sequence[str]) -> None:
    """Make the service's tables, with a row of zeros per carrier; those of an earlier run are dropped.

    Raises:
        ConfigError: If the schema exists and is somebody else's.
    """
    with connection.transaction():
        row = connection.execute(_OWNER).fetchone()
        if row is not None and row[0] != _MARK:
            raise ConfigError(f"schema {SERVICE_SCHEMA!r} exists and is not the demo's: it is left as it is")
        connection.execute(_CREATE)
        connection.execute(_INSERT_CARRIERS, ([*carriers],))


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


def book(connection: Connection, message: Message) -> None:
    """Book one flight in the transaction that is open: a row in the ledger, and its delay onto its carrier's sum."""
    flight = message.value
    connection.execute(_INSERT_LEDGER, (flight["nr"], message.partition, message.offset, message.key))
    connection.execute(_ADD_DELAY, (*booking_of(flight), carrier_of(flight)))


def count_departures(connection: Connection) -> int:
    return int(_one_row(connection.execute(_COUNT_DEPARTURES))[0])


def last_delivery(connection: Connection) -> int:
    """Return the number of the newest note, for `select_delivered`."""
    return int(_one_row(connection.execute(_LAST_DELIVERY))[0])


def select_delivered(connection: Connection, group: str, after: int) -> list[int]:
    """Return which messages a group was handed after that note, in this order."""
    return [row[0] for row in connection.execute(_SELECT_DELIVERED, (group, after))]


def count_handed_over(connection: Connection, group: str, nr: int) -> int:
    """Return how often a group was handed one message."""
    return int(_one_row(connection.execute(_COUNT_HANDED_OVER, (group, nr)))[0])


def select_effects(connection: Connection, late_nrs: Sequence[int]) -> Effects:
    """Read the ledger; `late_nrs` may come behind others of their key."""
    nrs = [row[0] for row in connection.execute(_SELECT_EFFECTS)]
    return Effects(nrs, int(_one_row(connection.execute(_COUNT_OVERTAKEN_EFFECTS, ([*late_nrs],)))[0]))


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
