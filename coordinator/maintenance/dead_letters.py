"""Keep the dead letters of every group within the bound that it has."""

from typing import Any

import psycopg

from coordinator.db.exchange import run_alone
from coordinator.observe import events
from coordinator.observe.logs import logger, said
from coordinator.protocol.dead_letters import trim_dead_letters
from coordinator.protocol.operations import drop_remains

log = logger(__name__)

# Counting the dead letters of all groups is not for every round.
TRIM_EVERY_S = 60.0


def trim(connection: psycopg.Connection[Any], schema: str) -> int:
    """Drop what is over the bounds, what died first first, in transactions of a thousand per group; return how many.

    By the way, what is left of deleted topics.

    Args:
        connection: In autocommit mode, outside of any transaction.
        schema: Where the schema is installed.

    Raises:
        UnavailableError: The connection is gone.
        psycopg.Error: What the database refused; what was dropped before stays dropped, and counted.
    """
    run_alone(connection, schema, drop_remains())
    dropped = 0
    while some := run_alone(connection, schema, trim_dead_letters()):
        dropped += some
    if dropped:
        log.warning(events.DEAD_LETTERS_DROPPED, extra={"dropped": dropped})
    return dropped


def trim_tick(connection: psycopg.Connection[Any], schema: str) -> None:
    """`trim` as a task beside others: what the database refuses is logged and not raised. Raises: UnavailableError."""
    try:
        trim(connection, schema)
    except psycopg.Error as error:
        log.warning(events.MAINTENANCE_FAILED, extra={"error": said(error)})
