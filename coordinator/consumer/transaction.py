"""Acks in the handler's own transaction: effects and ack are committed together, or neither.

The fence and the acks row are the last statements before the COMMIT. If the answer to the COMMIT is lost, the outcome is
read from the server by the transaction's id, never assumed.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

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
from coordinator.db.connect import callers
from coordinator.db.drive import execute
from coordinator.db.translate import cause_of, translate
from coordinator.errors import AlreadySettledError, UnavailableError
from coordinator.model import Message
from coordinator.protocol import deliveries
from coordinator.protocol.deliveries import Begun

if TYPE_CHECKING:
    from coordinator.consumer.handing import Handing

_ASK_AGAIN_S = 0.05


@contextlib.contextmanager
def transaction(
    runtime: "Handing", messages: Sequence[Message], connection: object
) -> Iterator[psycopg.Connection[Any]]:
    """Yield a connection in a transaction; at the end of the block the messages are acked in it, and it is committed.

    Raises:
        StaleEpochError, AlreadySettledError: The ack was refused; everything was rolled back.
        UnavailableError: The connection was lost, and the transaction is known to be rolled back.
        ConfigError: The given connection is in a transaction already, or in pipeline mode.
        HandlerError: The block has ended the transaction itself, or left a pipeline, a COPY or a stream of rows open.
    """
    runs = [message.delivery for message in messages if message.delivery is not None]
    with runtime.lock:
        runtime.engine.begin_runs(runs)
        me, history = runtime.id, runtime.history
    known = True
    try:
        with contextlib.ExitStack() as stack:
            own = stack.enter_context(runtime.handlers_pool().lent()) if connection is None else callers(connection)
            check_idle(own)
            xids: list[str] = []
            try:
                with own.transaction():
                    begun = _limit(own, runtime, messages)
                    check_history(begun.history, history)
                    yield own
                    check_open(own)
                    with runtime.lock:
                        runtime.engine.check_runs(runs)
                    acks = ack_statements(me, messages, begun.began_us)
                    xids.extend(acked(execute(ack, own, runtime.schema)) for ack in acks)
                    known = False
                known = True
            except AlreadySettledError:
                _tell_settled(runtime, own, messages)
                raise
            except psycopg.Error as error:
                if not (xids and own.closed):
                    known = True
                    ours = translate(error, own) if own.closed else None
                    if ours is None:
                        raise
                    raise ours from cause_of(error)
                committed = _committed(runtime, xids[0], history, messages)
                known = True
                if not committed:
                    raise UnavailableError("the connection was lost in the commit, which was rolled back") from error
        with runtime.changed:
            now_s = time.monotonic()
            # No xid: psycopg.Rollback was raised in the block, and its end was not reached.
            for delivery in runs if xids else ():
                runtime.engine.acked_in_transaction(delivery, now_s)
            runtime.changed.notify_all()
    finally:
        with runtime.lock:
            if not known:
                runtime.engine.doubt(runs)
            for delivery in runs:
                runtime.engine.end_run(delivery)


def _tell_settled(runtime: "Handing", own: psycopg.Connection[Any], messages: Sequence[Message]) -> None:
    """Find out which of them another run has settled. If that one was cut off behind its COMMIT, nobody has told the engine."""
    settled: list[Message] = []
    with contextlib.suppress(psycopg.Error, UnavailableError), own.transaction():
        settled = [message for message in messages if execute(ack_question([message]), own, runtime.schema)]
    with runtime.changed:
        for message in settled:
            if message.delivery is not None:
                runtime.engine.acked_in_transaction(message.delivery, time.monotonic())
        runtime.changed.notify_all()


def _limit(connection: psycopg.Connection[Any], runtime: "Handing", messages: Sequence[Message]) -> Begun:
    """A handler may be idle in its transaction for as long as its deadline allows, and no longer."""
    return execute(
        idle_limit(messages, runtime.settings.visibility_timeout_s, time.monotonic()), connection, runtime.schema
    )


def _committed(runtime: "Handing", xid: str, history: str | None, messages: Sequence[Message]) -> bool:
    """Ask until the transaction is no longer in progress; then whether it was this one: a crash gives numbers out again."""
    while True:
        try:
            with runtime.handlers_pool().connection() as asking:
                outcome = execute(deliveries.transaction_outcome(xid, history), asking, runtime.schema)
                if outcome == "committed":
                    return execute(ack_question(messages), asking, runtime.schema)
        except UnavailableError:
            runtime.check()
            outcome = "in progress"
        if outcome != "in progress":
            return is_committed(outcome)
        time.sleep(_ASK_AGAIN_S)
