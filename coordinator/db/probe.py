"""What is between us and the server, tried out: how long a notification takes, and whose session a transaction gets."""

import time
from typing import Any
from uuid import uuid4

import psycopg

from coordinator.db.connect import listen_statement


def notify_round_trip_s(
    listener: psycopg.Connection[Any], sender: psycopg.Connection[Any], timeout_s: float
) -> float | None:
    """Send a notification from one connection to another; None if it does not come in time. Both are in autocommit mode."""
    channel = f"coordinator_doctor_{uuid4().hex}"
    listener.execute(listen_statement(channel))
    try:
        started_s = time.monotonic()
        sender.execute("select pg_catalog.pg_notify(%s, '')", (channel,))
        for _ in listener.notifies(timeout=timeout_s, stop_after=1):
            return time.monotonic() - started_s
        return None
    finally:
        listener.execute("unlisten *")


def pooler_between(first: psycopg.Connection[Any], second: psycopg.Connection[Any]) -> str | None:
    """Say what lends us sessions: None for the server itself, else "session" or "transaction".

    A pooler invents the process ids that it tells its clients, so the server's own differ. In transaction mode a session is
    anybody's between two transactions: while the second connection holds in a transaction what the first was lent last, the
    first gets another one.
    """
    before = _pid(first)
    if before == first.info.backend_pid:
        return None
    with second.transaction():
        _pid(second)
        held = _pid(first)
    with first.transaction():
        after = _pid(first)
        with second.transaction():
            return "session" if before == held == after != _pid(second) == _pid(second) else "transaction"


def _pid(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute("select pg_catalog.pg_backend_pid()", prepare=False).fetchone()
    assert row is not None
    return int(row[0])
