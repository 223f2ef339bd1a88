"""The one round trip of an exchange, as a pipeline of two transactions: one that writes, one that reads.

    begin; limits; exchange [; release] [; due]; commit; [begin; [parked;] fetch; [limits; gap pass;] commit]

BEGIN, the limits of our transactions and COMMIT are pipelined with the work, so they cost no round trip; nothing is left on
the session, so it works behind a pooler. The windows are committed before FETCH runs: the server handles the messages of a
pipeline one after the other, and COMMIT returns when it is on disk.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg.adapt import AdaptersMap
from psycopg.rows import tuple_row
from psycopg.types.string import ByteaBinaryLoader

from coordinator.db.drive import AsyncPlainCursor, PlainCursor, no_utf8
from coordinator.db.translate import cause_of, translate
from coordinator.errors import CoordinatorError, UnavailableError
from coordinator.model import Due, Settled
from coordinator.protocol import deliveries
from coordinator.protocol.deliveries import ExchangeAnswer, ExchangeCall
from coordinator.protocol.placeholder import render
from coordinator.protocol.statement import Row, Statement

T = TypeVar("T")

_ALONE = "alone"

# Most handlers look at neither the time nor the id of a message, and to make a datetime and a UUID costs more than all the rest
# of a row: both stay as they came, and Message decodes them where they are asked for.
_RAW = AdaptersMap(psycopg.adapters)
for _type in ("timestamptz", "uuid"):
    _RAW.register_loader(_type, ByteaBinaryLoader)


class _RawCursor(psycopg.Cursor[Row]):
    """For results in binary form that hold messages."""

    adapters = property(lambda _self: _RAW)


class _AsyncRawCursor(psycopg.AsyncCursor[Row]):
    adapters = property(lambda _self: _RAW)


class Step(NamedTuple):
    """One statement of a pipeline. `name`: under which its rows are read; empty where nobody reads them.

    binary: the form of its result. raw: that holds messages, whose times and ids stay as they came.
    """

    text: str
    parameters: Sequence[object] | Mapping[str, object] = ()
    name: str = ""
    binary: bool = False
    raw: bool = True


# What the pipeline answered, by the names of its steps.
Rows = dict[str, list[Row]]

_BEGIN = Step(deliveries.BEGIN)
_LIMITS = Step(deliveries.LIMITS)
_CALLERS_LIMITS = Step(deliveries.CALLERS_LIMITS)
_COMMIT = Step(deliveries.COMMIT)


def exchange_steps(call: ExchangeCall) -> list[Step]:
    """Return what is sent for one exchange, in order."""
    steps = [_BEGIN, _LIMITS, Step(deliveries.EXCHANGE, call.settle, "exchange")]
    if call.release is not None:
        steps.append(Step(deliveries.RELEASE, call.release, "release"))
    if call.due is not None:
        steps.append(Step(deliveries.DUE, call.due, "due"))
    steps.append(_COMMIT)
    if call.fetch is not None or call.gaps is not None or call.parked is not None:
        # In a transaction that says its isolation level, also for the fetch alone: in a pipeline a statement outside of
        # one begins one, at the database's default level, and a BEGIN behind it can't change that.
        steps.append(_BEGIN)
        if call.parked is not None:
            steps.append(Step(deliveries.PARKED, call.parked, "parked", binary=True))
        if call.fetch is not None:
            # Without limits: a big window may take longer to send than a statement of ours may run.
            steps.append(Step(deliveries.FETCH, call.fetch, "fetch", binary=True))
        if call.gaps is not None:
            steps += [_LIMITS, Step(deliveries.GAP_PASS, call.gaps, "gaps", binary=True)]
        steps.append(_COMMIT)
    return steps


def exchange_answer(rows: Rows) -> ExchangeAnswer:
    """Read what the steps of an exchange answered."""
    return ExchangeAnswer(
        [Settled(*row) for row in rows["exchange"]],
        rows["release"][0][0] if "release" in rows else 0,
        rows.get("fetch", []),  # type: ignore[arg-type] # a Row of the model is found by place, as these tuples are
        deliveries.parse_gaps(rows.get("gaps", ())),
        [Due(*row) for row in rows.get("due", ())],
        deliveries.parse_parked(rows.get("parked", ())),
    )


def alone_steps(statement: Statement[T]) -> list[Step]:
    """Return what is sent for a statement that wants READ COMMITTED, in a transaction of its own."""
    return [_BEGIN, _LIMITS, Step(statement.text, statement.parameters, _ALONE), _COMMIT]


def callers_steps(statement: Statement[T]) -> list[Step]:
    """Return what is sent for a statement that a caller waits for, in a transaction of its own.

    In one that says all about itself, and not on its own: the defaults of a role or database may be read-only, stricter
    than READ COMMITTED, or limit a statement to less than a topic's creation takes. Binary: the text of a time depends on
    the DateStyle of a role or database.
    """
    step = Step(statement.text, statement.parameters, _ALONE, binary=True, raw=False)
    return [_BEGIN, _CALLERS_LIMITS, step, _COMMIT]


def run(connection: psycopg.Connection[Any], schema: str, call: ExchangeCall) -> ExchangeAnswer:
    """Carry out one exchange on a connection in autocommit mode.

    Raises:
        UnavailableError: The connection is gone.
        psycopg.Error: The server refused something; the connection is in order, no transaction is open.

    After either it is not known whether the exchange was committed: the error may have come from the reads behind it.
    """
    return exchange_answer(_send(connection, schema, exchange_steps(call)))


async def arun(connection: psycopg.AsyncConnection[Any], schema: str, call: ExchangeCall) -> ExchangeAnswer:
    """`run` for an AsyncConnection."""
    return exchange_answer(await _asend(connection, schema, exchange_steps(call)))


def run_alone(connection: psycopg.Connection[Any], schema: str, statement: Statement[T]) -> T:
    """Run a statement that wants READ COMMITTED in a transaction of its own; raises as `run`."""
    return statement.parse(_send(connection, schema, alone_steps(statement))[_ALONE])


async def arun_alone(connection: psycopg.AsyncConnection[Any], schema: str, statement: Statement[T]) -> T:
    """`run_alone` for an AsyncConnection."""
    return statement.parse((await _asend(connection, schema, alone_steps(statement)))[_ALONE])


def run_for_caller(statement: Statement[T], connection: psycopg.Connection[Any], schema: str) -> T:
    """Run a statement that a caller waits for, on a session of which nothing is known; raises as `run`."""
    return statement.parse(_send(connection, schema, callers_steps(statement))[_ALONE])


async def arun_for_caller(statement: Statement[T], connection: psycopg.AsyncConnection[Any], schema: str) -> T:
    """`run_for_caller` for an AsyncConnection."""
    return statement.parse((await _asend(connection, schema, callers_steps(statement)))[_ALONE])


def _send(connection: psycopg.Connection[Any], schema: str, steps: Sequence[Step]) -> Rows:
    cursors: dict[str, psycopg.Cursor[Row]] = {}
    try:
        with connection.pipeline() as pipeline, at_once(pipeline):
            for step in steps:
                kind = (_RawCursor if step.raw else PlainCursor) if step.binary else psycopg.Cursor[Row]
                cursor = kind(connection, row_factory=tuple_row)
                cursor.execute(render(step.text, schema), step.parameters, binary=step.binary)
                cursors[step.name] = cursor
        return {name: cursor.fetchall() for name, cursor in cursors.items() if name}
    except UnicodeEncodeError as error:
        connection.rollback()
        raise no_utf8(error) from error
    except psycopg.Error as error:
        ours = after(error, connection)
        if ours is None:
            raise
        raise ours from cause_of(error)


async def _asend(connection: psycopg.AsyncConnection[Any], schema: str, steps: Sequence[Step]) -> Rows:
    cursors: dict[str, psycopg.AsyncCursor[Row]] = {}
    try:
        async with connection.pipeline() as pipeline:
            with at_once(pipeline):
                for step in steps:
                    kind = (
                        (_AsyncRawCursor if step.raw else AsyncPlainCursor) if step.binary else psycopg.AsyncCursor[Row]
                    )
                    cursor = kind(connection, row_factory=tuple_row)
                    await cursor.execute(render(step.text, schema), step.parameters, binary=step.binary)
                    cursors[step.name] = cursor
        return {name: await cursor.fetchall() for name, cursor in cursors.items() if name}
    except UnicodeEncodeError as error:
        await connection.rollback()
        raise no_utf8(error) from error
    except psycopg.Error as error:
        ours = await aafter(error, connection)
        if ours is None:
            raise
        raise ours from cause_of(error)


@contextmanager
def at_once(pipeline: psycopg.Pipeline | psycopg.AsyncPipeline) -> Iterator[None]:
    """Send what is executed in the block with one write, COMMIT included, at the end of the block.

    psycopg writes statement by statement, and lets others have the interpreter, or the event loop, in between. A process that is
    stopped there, or whose loop is blocked by a handler, leaves a transaction open that holds the rows of its claims; and no
    limit of the server's ends it, since between the statements of a pipeline a session is neither idle nor in a statement.
    And the server begins now: psycopg waits before it sends, and a thread that computes would get the interpreter there.
    """
    # Of psycopg's own; tests/faults/test_pipeline.py sees whether this still does what it is for.
    pipeline._communicate_gen = _nothing  # type: ignore[method-assign] # noqa: SLF001
    try:
        yield
    finally:
        del pipeline._communicate_gen  # noqa: SLF001
        sends = pipeline.command_queue
        # What fails, and what does not fit into the socket now, is left to psycopg, which waits, and tells errors as its own.
        with suppress(psycopg.OperationalError):
            while sends:
                sends[0]()
                sends.popleft()
            pipeline.pgconn.flush()


def _nothing() -> Generator[Any, Any, None]:
    return
    yield


def after(error: psycopg.Error, connection: psycopg.Connection[Any]) -> CoordinatorError | None:
    """End the transaction in which a pipeline has failed; returns our error, None where psycopg's is to pass through."""
    ours = _standby(error) or translate(error, connection)
    if isinstance(ours, UnavailableError):
        return ours
    # Ended for our own errors, too: a coordinator that is told MemberDeadError registers anew on the same connection.
    try:
        connection.rollback()
    except psycopg.Error:
        return UnavailableError(str(error).strip())
    return ours


async def aafter(error: psycopg.Error, connection: psycopg.AsyncConnection[Any]) -> CoordinatorError | None:
    """`after` for an AsyncConnection."""
    ours = _standby(error) or translate(error, connection)
    if isinstance(ours, UnavailableError):
        return ours
    try:
        await connection.rollback()
    except psycopg.Error:
        return UnavailableError(str(error).strip())
    return ours


def _standby(error: psycopg.Error) -> UnavailableError | None:
    """Tell a server that takes no writes: one name may lead to what was the primary and is a standby by now.

    Its sessions live on, so that only a new connection finds the one that takes writes. BEGIN READ WRITE is refused there as
    a feature, and nothing else of ours can be.
    """
    if error.sqlstate in ("0A000", "25006"):
        return UnavailableError(f"the server takes no writes: {error.diag.message_primary}")
    return None
