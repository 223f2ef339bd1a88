"""Declare dead whose lease is over, where no consumer runs that would."""

from typing import Any

import psycopg

from coordinator.db.exchange import run_alone
from coordinator.errors import DeniedError
from coordinator.observe import events
from coordinator.observe.logs import logger, said
from coordinator.protocol.groups import facts_of, reap

log = logger(__name__)

# As often as consumers look, by default.
REAP_EVERY_S = 2.0


def reap_tick(connection: psycopg.Connection[Any], schema: str, observed_s: float) -> None:
    """Declare dead who is dead; what the database refuses is logged and not raised.

    Args:
        connection: In autocommit mode, outside of any transaction.
        schema: Where the schema is installed.
        observed_s: How long the connection has been up: nobody is judged by what was not seen.

    Raises:
        UnavailableError: The connection is gone.
    """
    try:
        dead = run_alone(connection, schema, reap(observed_s))
    except (psycopg.Error, DeniedError) as error:
        log.warning(events.MAINTENANCE_FAILED, extra={"task": "reap", "error": said(error)})
        return
    for one in dead:
        log.warning(events.MEMBER_DIED, extra=facts_of(one))
