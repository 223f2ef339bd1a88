"""Run a Statement or a Flow on a connection: the only place where statements meet psycopg.

Both run in whatever transaction the connection is in, and begin, commit and roll back nothing themselves.
"""

from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any, TypeVar

import psycopg
from psycopg.adapt import AdaptersMap
from psycopg.rows import tuple_row

from coordinator.db.translate import cause_of, translate
from coordinator.errors import InvalidInputError
from coordinator.protocol.placeholder import render
from coordinator.protocol.statement import Flow, Row, Statement

T = TypeVar("T")

# A producer runs on the caller's own connection, and that one may have a cursor class, a row factory and loaders of
# its own: Django's gives jsonb as text. Parsers rely on plain tuples of psycopg's plain types.
_ADAPTERS = AdaptersMap(psycopg.adapters)


class PlainCursor(psycopg.Cursor[Row]):
    adapters = property(lambda _self: _ADAPTERS)


class AsyncPlainCursor(psycopg.AsyncCursor[Row]):
    adapters = property(lambda _self: _ADAPTERS)


def drive(flow: Flow[T], connection: psycopg.Connection[Any], schema: str) -> T:
    """Run a flow to its end and return its result; a statement's error is raised where the flow yielded it."""
    return follow(flow, lambda statement: execute(statement, connection, schema))


async def adrive(flow: Flow[T], connection: psycopg.AsyncConnection[Any], schema: str) -> T:
    """`drive` for an AsyncConnection."""
    return await afollow(flow, lambda statement: aexecute(statement, connection, schema))


def follow(flow: Flow[T], run: Callable[[Statement[Any]], Any]) -> T:
    """`drive`, with another way to run each statement."""
    with closing(flow):
        try:
            statement = next(flow)
            while True:
                try:
                    result = run(statement)
                except Exception as error:  # noqa: BLE001 - the flow decides; uncaught, it comes out of throw()
                    statement = flow.throw(error)
                else:
                    statement = flow.send(result)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]


async def afollow(flow: Flow[T], run: Callable[[Statement[Any]], Awaitable[Any]]) -> T:
    """`follow` for asyncio."""
    with closing(flow):
        try:
            statement = next(flow)
            while True:
                try:
                    result = await run(statement)
                except Exception as error:  # noqa: BLE001 - as in follow
                    statement = flow.throw(error)
                else:
                    statement = flow.send(result)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]


def execute(statement: Statement[T], connection: psycopg.Connection[Any], schema: str) -> T:
    """Run one statement and return its parsed result."""
    try:
        cursor = PlainCursor(connection, row_factory=tuple_row)
        # Binary: the text of a time depends on the DateStyle of a role or database.
        cursor.execute(render(statement.text, schema), statement.parameters, binary=True)
        # In a caller's pipeline there is no description before something is fetched.
        rows = cursor.fetchall() if cursor.description or connection.pgconn.pipeline_status else []
    except UnicodeEncodeError as error:
        raise no_utf8(error) from error
    except psycopg.Error as error:
        ours = translate(error, connection)
        if ours is None:
            raise
        raise ours from cause_of(error)
    return statement.parse(rows)


async def aexecute(statement: Statement[T], connection: psycopg.AsyncConnection[Any], schema: str) -> T:
    """`execute` for an AsyncConnection."""
    try:
        cursor = AsyncPlainCursor(connection, row_factory=tuple_row)
        await cursor.execute(render(statement.text, schema), statement.parameters, binary=True)
        rows = await cursor.fetchall() if cursor.description or connection.pgconn.pipeline_status else []
    except UnicodeEncodeError as error:
        raise no_utf8(error) from error
    except psycopg.Error as error:
        ours = translate(error, connection)
        if ours is None:
            raise
        raise ours from cause_of(error)
    return statement.parse(rows)


def no_utf8(error: UnicodeEncodeError) -> InvalidInputError:
    """Return our error for a text that can't be sent."""
    return InvalidInputError(f"the text {error.object!r} holds a lone surrogate, which has no UTF-8 form")
