"""The one round trip of an exchange, as a pipeline of two transactions: one that writes, one that reads.

    begin; limits; exchange [; release] [; due]; commit; [begin; [parked;] fetch; [limits; gap pass;] commit]

BEGIN, the limits of our transactions and COMMIT are pipelined with the work, so they cost no round trip; nothing is left on
the session, so it works behind a pooler. The windows are committed before FETCH runs: the server handles the messages of a
pipeline one after the other, and COMMIT returns when it is on disk.
"""

from typing import Any, TypeVar

import psycopg
from psycopg.rows import tuple_row

from coordinator.db.translate import translate
from coordinator.errors import CoordinatorError, UnavailableError
from coordinator.model import Due, Settled
from coordinator.protocol import deliveries
from coordinator.protocol.deliveries import ExchangeAnswer, ExchangeCall
from coordinator.protocol.placeholder import render
from coordinator.protocol.statement import Statement

T = TypeVar("T")


def run(connection: psycopg.Connection[Any], schema: str, call: ExchangeCall) -> ExchangeAnswer:
    """Carry out one exchange on a connection in autocommit mode.

    Raises:
        UnavailableError: The connection is gone.
        psycopg.Error: The server refused something; the connection is in order, no transaction is open.

    After either it is not known whether the exchange was committed: the error may have come from the reads behind it.
    """
    cursors: dict[str, psycopg.Cursor[Any]] = {}

    def send(name: str, text: str, parameters: tuple[object, ...] = (), *, binary: bool = False) -> None:
        cursor = connection.cursor(row_factory=tuple_row, binary=binary)
        cursor.execute(render(text, schema), parameters)
        cursors[name] = cursor

    try:
        with connection.pipeline():
            send("begin", deliveries.BEGIN)
            send("limits", deliveries.LIMITS)
            send("exchange", deliveries.EXCHANGE, call.settle)
            if call.release is not None:
                send("release", deliveries.RELEASE, call.release)
            if call.due is not None:
                send("due", deliveries.DUE, call.due)
            send("commit", deliveries.COMMIT)
            if call.fetch is not None or call.gaps is not None or call.parked is not None:
                # In a transaction that says its isolation level, also for the fetch alone: in a pipeline a statement
                # outside of one begins one, at the database's default level, and a BEGIN behind it can't change that.
                send("begin reads", deliveries.BEGIN)
                if call.parked is not None:
                    send("parked", deliveries.PARKED, call.parked, binary=True)
                if call.fetch is not None:
                    # Without limits: a big window may take longer to send than a statement of ours may run.
                    send("fetch", deliveries.FETCH, call.fetch, binary=True)
                if call.gaps is not None:
                    send("limits reads", deliveries.LIMITS)
                    send("gaps", deliveries.GAP_PASS, call.gaps, binary=True)
                send("commit reads", deliveries.COMMIT)
        return ExchangeAnswer(
            [Settled(*row) for row in cursors["exchange"].fetchall()],
            cursors["release"].fetchone()[0] if call.release is not None else 0,  # type: ignore[index]
            cursors["fetch"].fetchall() if call.fetch is not None else [],
            deliveries.parse_gaps(cursors["gaps"].fetchall()) if call.gaps is not None else {},
            [Due(*row) for row in cursors["due"].fetchall()] if call.due is not None else [],
            deliveries.parse_parked(cursors["parked"].fetchall()) if call.parked is not None else [],
        )
    except psycopg.Error as error:
        ours = _ended(error, connection)
        if ours is None:
            raise
        raise ours from error


def run_alone(connection: psycopg.Connection[Any], schema: str, statement: Statement[T]) -> T:
    """Run a statement that wants READ COMMITTED in a transaction of its own; raises as `run`."""
    try:
        with connection.pipeline():
            connection.execute(deliveries.BEGIN)
            connection.execute(render(deliveries.LIMITS, schema))
            cursor = connection.cursor(row_factory=tuple_row)
            cursor.execute(render(statement.text, schema), statement.parameters)
            connection.execute(deliveries.COMMIT)
        return statement.parse(cursor.fetchall())
    except psycopg.Error as error:
        ours = _ended(error, connection)
        if ours is None:
            raise
        raise ours from error


def _ended(error: psycopg.Error, connection: psycopg.Connection[Any]) -> CoordinatorError | None:
    """End the failed transaction and return our error for psycopg's, if there is one.

    Ended for our own errors, too: a coordinator that is told MemberDeadError registers anew on the same connection.
    """
    ours = translate(error, connection)
    if not _clean(connection) and not isinstance(ours, UnavailableError):
        return UnavailableError(str(error).strip())
    return ours


def _clean(connection: psycopg.Connection[Any]) -> bool:
    """End a failed transaction; False if the connection did not survive that."""
    try:
        connection.rollback()
    except psycopg.Error:
        return False
    return True
