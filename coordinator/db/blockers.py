"""Who holds a claim's row: a session that waits for it is asked about, by another one, whom it waits for."""

import asyncio
import time
from typing import Any

import psycopg

from coordinator.db.drive import aexecute, execute
from coordinator.model import Blocker, PartitionKey
from coordinator.protocol.groups import PROBE, blockers_of, end_blockers
from coordinator.protocol.placeholder import render

# For how long it is asked; the probe itself waits a little longer.
_ASK_S = 0.8
_PAUSE_S = 0.02


def blockers(
    asking: psycopg.Connection[Any],
    probe: psycopg.Connection[Any],
    schema: str,
    key: PartitionKey,
    *,
    end: bool = False,
) -> tuple[list[Blocker], list[int]]:
    """Return who holds a claim, and the pids of those that were ended.

    Args:
        probe: A connection of its own in autocommit mode; it can only be closed afterwards.
        end: End the sessions of our own role that hold it.
    """
    probe.execute("begin isolation level read committed")
    row = probe.execute("select pg_catalog.pg_backend_pid()").fetchone()
    assert row is not None
    _send(probe, schema, key)
    until_s = time.monotonic() + _ASK_S
    while True:
        found = execute(blockers_of(row[0]), asking, schema)
        if found or time.monotonic() >= until_s:
            return found, execute(end_blockers(row[0]), asking, schema) if end and found else []
        time.sleep(_PAUSE_S)


async def ablockers(
    asking: psycopg.AsyncConnection[Any],
    probe: psycopg.AsyncConnection[Any],
    schema: str,
    key: PartitionKey,
    *,
    end: bool = False,
) -> tuple[list[Blocker], list[int]]:
    """`blockers` for asyncio."""
    await probe.execute("begin isolation level read committed")
    row = await (await probe.execute("select pg_catalog.pg_backend_pid()")).fetchone()
    assert row is not None
    _send(probe, schema, key)
    until_s = time.monotonic() + _ASK_S
    while True:
        found = await aexecute(blockers_of(row[0]), asking, schema)
        if found or time.monotonic() >= until_s:
            return found, await aexecute(end_blockers(row[0]), asking, schema) if end and found else []
        await asyncio.sleep(_PAUSE_S)


def _send(probe: psycopg.BaseConnection[Any], schema: str, key: PartitionKey) -> None:
    """Send the probe and don't wait: nobody may be held up for as long as it is, and no thread is needed for it."""
    probe.pgconn.send_query_params(render(PROBE, schema).encode(), [str(part).encode() for part in key])
    probe.pgconn.flush()
