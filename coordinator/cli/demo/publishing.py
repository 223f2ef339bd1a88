"""What one publisher does: batches on its own, batches in the service's transactions, and some that are rolled back."""

from collections.abc import Sequence

from coordinator import Coordinator, Outgoing
from coordinator.cli.demo import tables
from coordinator.cli.demo.facts import Published
from coordinator.cli.demo.flights import Flight
from coordinator.cli.demo.plan import PUBLISH_BATCH, TOPIC

_ROLLED_BACK_PER_BATCH = 7


def publish_flights(app: Coordinator, connection: tables.Connection, flights: Sequence[Flight]) -> Published:
    """Publish all flights in their order and return what was committed; `connection` is the service's own."""
    published = Published()
    for index, start in enumerate(range(0, len(flights), PUBLISH_BATCH)):
        batch = flights[start : start + PUBLISH_BATCH]
        if index % 3 == 0:
            _publish_with_rows(app, connection, batch)
            published = published.plus(Published(len(batch), with_row_count=len(batch)))
            continue
        if index % 3 == 1:
            dropped = _publish_and_roll_back(app, connection, batch)
            published = published.plus(Published(rolled_back_count=dropped))
        app.publish_many(TOPIC, [_outgoing(flight) for flight in batch])
        published = published.plus(Published(len(batch)))
    return published


def _publish_with_rows(app: Coordinator, connection: tables.Connection, flights: Sequence[Flight]) -> None:
    """Rows and messages in one transaction: both are there afterwards, or neither."""
    with connection.transaction():
        tables.insert_departures(connection, flights)
        app.publish_many(TOPIC, [_outgoing(flight) for flight in flights], connection=connection)


def _publish_and_roll_back(app: Coordinator, connection: tables.Connection, flights: Sequence[Flight]) -> int:
    """Publish some messages that must never be seen: they leave gaps between the offsets of others."""
    phantoms = [{**flight, "nr": -1 - flight["nr"]} for flight in flights[:_ROLLED_BACK_PER_BATCH]]
    with connection.transaction(force_rollback=True):
        tables.insert_departures(connection, phantoms)
        app.publish_many(TOPIC, [_outgoing(flight) for flight in phantoms], connection=connection)
    return len(phantoms)


def _outgoing(flight: Flight) -> Outgoing:
    return Outgoing(flight, key=flight["tail"])
