"""One round of what publishing needs: move scheduled messages that are due, delete dedup keys whose window is over."""

from typing import Any

import psycopg

from coordinator.db.exchange import run_alone
from coordinator.observe import events
from coordinator.observe.logs import logger, said
from coordinator.protocol.maintenance import Maintained, maintain_publishing

log = logger(__name__)

# The most that one round moves or deletes: it stays well below the limit of our statements.
ROUND_LIMIT = 1000
_PAUSE_AFTER_FAILURE_S = 5.0


def tick(connection: psycopg.Connection[Any], schema: str) -> float:
    """Do one round, and return in how many seconds the next should come: 0 to 1, 5 after a failure.

    What the database refuses is logged and not raised: the caller's other work goes on.

    Args:
        connection: In autocommit mode, outside of any transaction; used for one round trip.
        schema: Where the schema is installed.

    Raises:
        UnavailableError: The connection is gone.
    """
    try:
        done = maintain(connection, schema)
    except psycopg.Error as error:
        log.warning(events.MAINTENANCE_FAILED, extra={"error": said(error)})
        return _PAUSE_AFTER_FAILURE_S
    return done.next_s


def maintain(connection: psycopg.Connection[Any], schema: str) -> Maintained:
    """Do one round and tell what it did; raises what the database says."""
    done = run_alone(connection, schema, maintain_publishing(ROUND_LIMIT))
    if done.failed:
        log.warning(events.MOVE_FAILED, extra={"failed": done.failed, "moved": done.moved})
    return done
