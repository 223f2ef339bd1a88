"""Finding out that a pooler stands between us and the server.

One in transaction mode lends each transaction another session, so whatever outlasts a transaction is with somebody else
afterwards: LISTEN, session locks, prepared statements, settings.
"""

from dataclasses import replace

from coordinator.observe import events
from coordinator.observe.logs import logger
from coordinator.protocol.statement import Flow, Statement, call
from coordinator.settings import Settings

log = logger()


def pooler_found(told_pid: int) -> Flow[bool]:
    """Tell whether the process that answers is another than the one that said so at the start of the connection.

    A pooler answers a client before it has a session for him, with a process number of its own making. Which mode it is in
    can't be seen: with nobody else about, one in transaction mode lends the same session again and again.

    Args:
        told_pid: What the connection was told when it was opened (`connection.info.backend_pid`).
    """
    statement = Statement("pg_backend_pid", "select pg_catalog.pg_backend_pid()", (), lambda rows: int(rows[0][0]))
    return (yield from call(statement)) != told_pid


def with_pooler(settings: Settings, told_pid: int) -> Flow[Settings]:
    """Return the settings with what a first connection tells, where they leave it open; says so where there is one."""
    if settings.pooler != "auto":
        return settings
    if not (yield from pooler_found(told_pid)):
        return replace(settings, pooler="none")
    log.warning(
        events.POOLER_FOUND,
        extra={
            "pooler": "transaction",
            "hint": "No LISTEN and no prepared statements, because its mode can't be seen: connect directly, or say "
            'pooler="session" (COORDINATOR_POOLER) if it keeps a session for each client.',
        },
    )
    return replace(settings, pooler="transaction")
