"""Rounds of maintenance until told to stop."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import psycopg

from coordinator.db.connect import connect
from coordinator.db.drive import drive
from coordinator.db.exchange import run_alone
from coordinator.db.schema import protocol_checked
from coordinator.db.upkeep import Upkeep
from coordinator.errors import UnavailableError
from coordinator.maintenance.dead_letters import TRIM_EVERY_S, trim, trim_tick
from coordinator.maintenance.detaching import detach_blocked
from coordinator.maintenance.members import REAP_EVERY_S, reap_tick
from coordinator.maintenance.publishing import maintain, tick
from coordinator.observe import events
from coordinator.observe.logs import logger, said

log = logger(__name__)

_LONGEST_PAUSE_S = 5.0
# A stop may be asked for by a signal's handler, which must not set an Event: so it is looked for.
_LOOK_S = 0.1


@dataclass(slots=True)
class Done:
    """What all rounds together did."""

    moved: int = 0
    failed: int = 0
    expired: int = 0
    # Segments: opened, read no more, dropped, not to be dropped yet because of locks; and claims that were made to skip.
    rotated: int = 0
    retired: int = 0
    dropped: int = 0
    blocked: int = 0
    skipped: int = 0
    # Tasks of retention that failed; the log says why.
    failed_tasks: int = 0


def once(dsn: str, schema: str, connect_timeout_s: float, name: str) -> Done:
    """Do rounds until one finds nothing to do.

    Raises:
        UnavailableError: No database.
        SchemaVersionError: The schema is not installed, or of another version.
        psycopg.Error: What the database refused.
    """
    total = Done()
    with _opened(dsn, schema, connect_timeout_s, name) as connection:
        while True:
            done = maintain(connection, schema)
            total.moved += done.moved
            total.failed += done.failed
            total.expired += done.expired
            # What failed waits for its next time, so every round leaves less to do.
            if done.next_s > 0:
                break
        trim(connection, schema)
        kept = Upkeep().round(partial(run_alone, connection, schema))
        total.rotated = kept.rotated
        total.retired = len(kept.retired)
        total.dropped = len(kept.dropped)
        total.blocked = len(kept.blocked)
        total.skipped = len(kept.skipped)
        total.failed_tasks = len(kept.failures)
        detach_blocked(connection, schema, kept.blocked)
    return total


def run(dsn: str, schema: str, connect_timeout_s: float, name: str, *, stopped: Callable[[], bool]) -> None:
    """Do rounds until `stopped` says so; an outage of the database is waited for.

    Raises:
        SchemaVersionError: The schema is not installed, or of another version.
        UnavailableError: There was no database at the start.
    """
    connection: psycopg.Connection[Any] | None = _opened(dsn, schema, connect_timeout_s, name)
    failures = 0
    opened_s = trim_at_s = reap_at_s = time.monotonic()
    upkeep = Upkeep(first_after_s=0.0)
    try:
        while not stopped():
            try:
                if connection is None:
                    connection = _opened(dsn, schema, connect_timeout_s, name)
                    opened_s = time.monotonic()
                    log.info(events.CONNECTION_RESTORED)
                pause_s = tick(connection, schema)
                round_before = upkeep.last
                pause_s = min(pause_s, max(upkeep.step(partial(run_alone, connection, schema), time.monotonic()), 0.0))
                if upkeep.last is not None and upkeep.last is not round_before:
                    detach_blocked(connection, schema, upkeep.last.blocked)
                if time.monotonic() >= trim_at_s:
                    trim_tick(connection, schema)
                    trim_at_s = time.monotonic() + TRIM_EVERY_S
                if time.monotonic() >= reap_at_s:
                    reap_tick(connection, schema, time.monotonic() - opened_s)
                    reap_at_s = time.monotonic() + REAP_EVERY_S
                failures = 0
            except UnavailableError as error:
                failures += 1
                log.warning(events.CONNECTION_LOST, extra={"error": said(error), "failures": failures})
                if connection is not None:
                    connection.close()
                    connection = None
                pause_s = min(0.1 * 2.0 ** min(failures, 10), _LONGEST_PAUSE_S) * random.uniform(0.5, 1.0)  # noqa: S311
            _wait(pause_s, stopped)
    finally:
        if connection is not None:
            connection.close()


def _wait(pause_s: float, stopped: Callable[[], bool]) -> None:
    until_s = time.monotonic() + pause_s
    while not stopped() and (left_s := until_s - time.monotonic()) > 0:
        time.sleep(min(left_s, _LOOK_S))


def _opened(dsn: str, schema: str, connect_timeout_s: float, name: str) -> psycopg.Connection[Any]:
    connection = connect(dsn, connect_timeout_s, name)
    try:
        drive(protocol_checked(schema), connection, schema)
    except BaseException:
        connection.close()
        raise
    return connection
