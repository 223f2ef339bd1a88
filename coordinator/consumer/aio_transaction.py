"""`transaction` for asyncio: acks in the handler's own transaction.

A cancellation in the block rolls back. Once the acks are sent it is too late for that: then the end is waited for, what became of
the transaction is told to the engine, and the cancellation goes on.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import psycopg

from coordinator.consumer.requests import (
    ack_question,
    ack_statements,
    acked,
    check_history,
    check_idle,
    check_open,
    idle_limit,
    is_committed,
)
from coordinator.db.connect import acallers
from coordinator.db.drive import aexecute
from coordinator.db.translate import cause_of, translate
from coordinator.db.uninterrupted import uninterrupted
from coordinator.errors import AlreadySettledError, UnavailableError
from coordinator.model import Message
from coordinator.protocol import deliveries
from coordinator.protocol.deliveries import Begun

if TYPE_CHECKING:
    from coordinator.consumer.aio_handing import AsyncHanding

T = TypeVar("T")

_ASK_AGAIN_S = 0.05


@contextlib.asynccontextmanager
async def transaction(
    runtime: "AsyncHanding", messages: Sequence[Message], connection: object
) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """Yield a connection in a transaction; at the end of the block the messages are acked in it, and it is committed.

    Raises:
        StaleEpochError, AlreadySettledError: The ack was refused; everything was rolled back.
        UnavailableError: The connection was lost, and the transaction is known to be rolled back.
        ConfigError: The given connection is in a transaction already, or in pipeline mode.
        HandlerError: The block has ended the transaction itself, or left a pipeline, a COPY or a stream of rows open.
    """
    runs = [message.delivery for message in messages if message.delivery is not None]
    runtime.engine.begin_runs(runs)
    me, history = runtime.id, runtime.history
    try:
        async with contextlib.AsyncExitStack() as stack:
            own = (
                await stack.enter_async_context(runtime.handlers_pool().lent())
                if connection is None
                else acallers(connection)
            )
            check_idle(own)
            block = psycopg.AsyncTransaction(own)
            await _begin(own, block)
            try:
                limit = idle_limit(messages, runtime.settings.visibility_timeout_s, time.monotonic())
                begun = await aexecute(limit, own, runtime.schema)
                check_history(begun.history, history)
                yield own
            except BaseException as error:
                if await _whole(own, _roll_back(block, error)):
                    return
                ours = translate(error, own) if isinstance(error, psycopg.Error) and own.closed else None
                if ours is None:
                    raise
                raise ours from cause_of(error)
            await _whole(own, _commit(runtime, own, block, messages, me, begun))
    finally:
        for delivery in runs:
            runtime.engine.end_run(delivery)


async def _whole(own: psycopg.AsyncConnection[Any], work: Coroutine[Any, Any, T]) -> T:
    """`uninterrupted`; where it is cut off all the same, the connection is closed.

    psycopg counts the transactions on it, and would take the next one for a nested one.
    """

    async def closing() -> T:
        try:
            return await work
        except asyncio.CancelledError:
            await own.close()
            raise

    return await uninterrupted(closing())


async def _begin(own: psycopg.AsyncConnection[Any], block: psycopg.AsyncTransaction) -> None:
    """Begin as a whole or not at all: a caller's own connection must not stay in a transaction that nobody ends."""
    try:
        await _whole(own, block.__aenter__())
    except asyncio.CancelledError as error:
        with contextlib.suppress(psycopg.Error):
            await _whole(own, _roll_back(block, error))
        raise
    except psycopg.Error as error:
        # As everywhere else in it: an outage that the handler would be charged with otherwise.
        ours = translate(error, own) if own.closed else None
        if ours is None:
            raise
        raise ours from cause_of(error)


async def _roll_back(block: psycopg.AsyncTransaction, error: BaseException) -> bool:
    """End the transaction; True if that is all that was meant: psycopg.Rollback was raised in the block."""
    return bool(await block.__aexit__(type(error), error, error.__traceback__))


async def _commit(
    runtime: "AsyncHanding",
    own: psycopg.AsyncConnection[Any],
    block: psycopg.AsyncTransaction,
    messages: Sequence[Message],
    me: UUID,
    begun: Begun,
) -> None:
    """Ack, commit and tell the engine, or find out what became of it."""
    xids: list[str] = []
    try:
        check_open(own)
        runtime.engine.check_runs([message.delivery for message in messages if message.delivery is not None])
        acks = ack_statements(me, messages, begun.began_us)
        xids.extend([acked(await aexecute(ack, own, runtime.schema)) for ack in acks])
    except BaseException as error:
        await _roll_back(block, error)
        if isinstance(error, AlreadySettledError):
            await _tell_settled(runtime, own, messages)
        raise
    known = False
    try:
        await block.__aexit__(None, None, None)
        known = True
    except psycopg.Error as error:
        if not own.closed:
            known = True
            raise
        committed = await _committed(runtime, xids[0], begun.history, messages)
        known = True
        if not committed:
            raise UnavailableError("the connection was lost in the commit, which was rolled back") from error
    finally:
        if not known:
            runtime.engine.doubt([message.delivery for message in messages if message.delivery is not None])
    now_s = time.monotonic()
    for message in messages:
        if message.delivery is not None:
            runtime.engine.acked_in_transaction(message.delivery, now_s)
    runtime.ready.ring()


async def _tell_settled(
    runtime: "AsyncHanding", own: psycopg.AsyncConnection[Any], messages: Sequence[Message]
) -> None:
    """Find out which of them another run has settled. If that one was cut off behind its COMMIT, nobody has told the engine."""
    settled: list[Message] = []
    with contextlib.suppress(psycopg.Error, UnavailableError):
        async with own.transaction():
            settled = [message for message in messages if await aexecute(ack_question([message]), own, runtime.schema)]
    for message in settled:
        if message.delivery is not None:
            runtime.engine.acked_in_transaction(message.delivery, time.monotonic())
    runtime.ready.ring()


async def _committed(runtime: "AsyncHanding", xid: str, history: str | None, messages: Sequence[Message]) -> bool:
    """Ask until the transaction is no longer in progress; then whether it was this one, whose number a crash may give to another.

    Raises:
        UnavailableError: The coordinator has stopped before the server could be asked: unknown.
    """
    while True:
        try:
            async with runtime.handlers_pool().connection() as asking:
                outcome = await aexecute(deliveries.transaction_outcome(xid, history), asking, runtime.schema)
                if outcome == "committed":
                    return await aexecute(ack_question(messages), asking, runtime.schema)
        except UnavailableError:
            runtime.check()
            if runtime.stopping:
                raise
            outcome = "in progress"
        if outcome != "in progress":
            return is_committed(outcome)
        await asyncio.sleep(_ASK_AGAIN_S)
