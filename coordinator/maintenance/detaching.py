"""Detach retired segments whose topic is never free of locks; only the owner of the tables can."""

import threading
from collections.abc import Iterable
from typing import Any

import psycopg

from coordinator.db.exchange import run_alone
from coordinator.db.translate import translated
from coordinator.errors import DeniedError
from coordinator.observe import events
from coordinator.observe.logs import logger, said
from coordinator.protocol.maintenance import Dropped, detach_command

log = logger(__name__)

# It waits for all that were open when it began; what they are done with by then is the next round's.
LIMIT_S = 20.0


def detach_blocked(connection: psycopg.Connection[Any], schema: str, blocked: Iterable[Dropped]) -> None:
    """Run DETACH CONCURRENTLY, or FINALIZE where that was cut off, for each; the next round drops the tables.

    It waits for older snapshots, for LIMIT_S at most, and nobody waits behind it. No function and no transaction may run it,
    so the limit is ours, and not the session's, which behind a pooler may be another's next.

    Args:
        connection: In autocommit mode, outside of any transaction.
        schema: Where the schema is installed.
        blocked: What drop_retired could not drop, one segment per topic.

    Raises:
        UnavailableError: The connection is gone.
    """
    for one in blocked:
        command = run_alone(connection, schema, detach_command(one.topic, one.segment))
        if command is None:
            continue
        limit = threading.Timer(LIMIT_S, connection.cancel_safe)
        limit.start()
        try:
            with translated(connection):
                # The server made the text of names in its catalogue.
                connection.execute(command.encode())
        except DeniedError:
            # Not the owner: what is always locked is for a process of the owner's.
            return
        except psycopg.Error as error:
            log.info(events.SEGMENT_BLOCKED, extra={**one._asdict(), "error": said(error)})
        finally:
            limit.cancel()
            limit.join()
