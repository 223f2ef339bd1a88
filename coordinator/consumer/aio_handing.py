"""What handlers' tasks call; the twin of `handing`."""

import asyncio
import random
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from coordinator.consumer.aio_base import AsyncBase
from coordinator.consumer.aio_transaction import transaction
from coordinator.consumer.options import ahead_of, handlers_pool_size, rejection
from coordinator.consumer.saving import (
    Goals,
    all_unsaved,
    check_ack,
    check_committed,
    not_in_time,
    reached,
    read_to_end,
)
from coordinator.consumer.telling import tell_verdict
from coordinator.core.ahead import Ahead
from coordinator.core.loop import Subscription
from coordinator.core.losses import Caller
from coordinator.core.partition import Partition
from coordinator.core.retry import Failure
from coordinator.db.connect import AsyncPool
from coordinator.model import Message
from coordinator.protocol.check import number
from coordinator.settings import Settings

if TYPE_CHECKING:
    import contextlib

    import psycopg

# After so long without a pause, a task that takes messages lets the others have a turn.
_TURN_S = 0.002


class AsyncHanding(AsyncBase):
    """Messages go out, what became of them comes in; the loops do the rest."""

    def __init__(self, dsn: str, schema: str, settings: Settings, client_id: str, static_id: str | None = None) -> None:
        super().__init__(dsn, schema, settings, client_id, static_id)
        self._turn_until_s = 0.0
        self._turning = False
        self._handlers_pool: AsyncPool | None = None

    def open_ahead(self) -> Ahead:
        """Make what one taker holds ahead, for `start_ahead` and `take_one`."""
        return self.engine.open_ahead(ahead_of(self.settings))

    def close_ahead(self, ahead: Ahead) -> None:
        """Give back what was not started of it."""
        self.engine.close_ahead(ahead)
        self.ready.ring()

    def start_ahead(self, ahead: Ahead) -> Message | None:
        """Start a message that the taker was handed ahead; None where `take_one` has to be asked."""
        if ahead.messages:
            now_s = time.monotonic()
            if now_s < self._turn_until_s and now_s < self.engine.lease_until_s:
                return ahead.start()
        return None

    async def take_one(
        self, subscriptions: Sequence[Subscription], ahead: Ahead, timeout_s: float | None
    ) -> list[Message]:
        """`take` of one message, by a taker that is handed some ahead while it is quick."""
        if ahead.messages:
            await self._turn()
            if time.monotonic() < self.engine.lease_until_s:
                message = ahead.start()
                if message is not None:
                    return [message]
        return await self.take(subscriptions, 1, timeout_s, ahead)

    async def take(
        self,
        subscriptions: Sequence[Subscription],
        max_count: int,
        timeout_s: float | None,
        ahead: Ahead | None = None,
    ) -> list[Message]:
        """Wait until messages may start, and hand them over; empty after the timeout, or when the coordinator stops.

        Nothing is awaited once messages were taken: a cancelled call has taken none.

        Raises:
            DeletedError: What one of the subscriptions reads was deleted.
        """
        await self._turn()
        self.check_there(subscriptions)
        now_s = time.monotonic()
        taken = self.engine.take(subscriptions, max_count, now_s, ahead)
        if taken:
            if now_s >= self.counting.sample_at_s:
                self.counting.taken(taken[0])
            return taken
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._stopping.is_set and not self.engine.draining:
            self.check()
            self.check_there(subscriptions)
            left_s = 1.0 if deadline_s is None else deadline_s - time.monotonic()
            if left_s <= 0:
                break
            await self.ready.wait(min(left_s, 1.0))
            taken = self.engine.take(subscriptions, max_count, time.monotonic(), ahead)
            if taken:
                self.counting.taken(taken[0])
                break
        return taken

    def note_ack(self, message: Message) -> None:
        """Settle, without a goal."""
        self.engine.note_ack(message, time.monotonic())
        if self.ready.awaited:
            self.engine.take_in()
            if message.owner.subscription.runnable:
                self._one_ready()

    def ack(self, message: Message) -> tuple[Partition, int]:
        """Settle; returns the goal that `saved` waits for."""
        assert message.delivery is not None
        partition = self.engine.ack(message.delivery, time.monotonic())
        if partition.subscription.runnable:
            self._one_ready()
        return partition, partition.settled_count

    async def saved(self, goal: tuple[Partition, int]) -> None:
        """Return when an ack is durable; raises as Message.ack."""
        await self._wait_saved([goal])
        check_ack(self.engine, *goal)

    async def _wait_saved(self, goals: Goals) -> None:
        deadline_s = time.monotonic() + self.settings.commit_timeout_s
        self.engine.flush()
        while not reached(goals):
            self.check()
            if time.monotonic() >= deadline_s:
                raise not_in_time(self.settings.commit_timeout_s)
            self.engine.flush()
            await self.changed.wait(0.5)

    def nack(self, message: Message, delay_s: float | None) -> None:
        """Give back as failed; see Message.nack."""
        self.fail(message, None, Failure("nack"), delay_s=delay_s)

    def reject(self, message: Message, reason: str) -> None:
        """Make it a dead letter; see Message.reject."""
        self.fail(message, *rejection(reason))

    def fail(
        self, message: Message, error: BaseException | None, failure: Failure, *, delay_s: float | None = None
    ) -> None:
        """Take the failure of a delivery; ignored when it is not live any more."""
        assert message.delivery is not None
        jitter = random.random()  # noqa: S311
        verdict = self.engine.fail(message.delivery, error, failure, time.monotonic(), jitter, delay_s=delay_s)
        self._one_ready()
        tell_verdict(message, verdict)

    def give_back(self, message: Message, pause_s: float) -> None:
        """Take a delivery back without a charge; its partition starts nothing for so long."""
        assert message.delivery is not None
        self.engine.give_back(message.delivery, time.monotonic(), pause_s)
        self._one_ready()

    def extend(self, message: Message, seconds: float) -> bool:
        """Move the deadline; see Message.extend."""
        assert message.delivery is not None
        now_s = time.monotonic()
        return self.engine.extend(message.delivery, now_s + number("seconds", seconds, 0), now_s)

    def transaction(
        self, messages: Sequence[Message], connection: object = None
    ) -> "contextlib.AbstractAsyncContextManager[psycopg.AsyncConnection[Any]]":
        """A transaction in which messages are acked at the end; see Message.transaction."""
        return transaction(self, messages, connection)

    def handlers_pool(self) -> AsyncPool:
        """Connections for handlers' transactions; nothing of ours limits them but their number."""
        if self._handlers_pool is None:
            self._handlers_pool = AsyncPool(
                self.dsn,
                self.schema,
                handlers_pool_size(self._options, self.settings),
                self.settings.pool_timeout_s,
                self.settings.connect_timeout_s,
                f"coordinator handlers {self.client_id}"[:63],
                prepare=self.settings.prepare,
                pooled=self.settings.pooled,
                for_handlers=True,
            )
        return self._handlers_pool

    async def commit(self, caller: Caller | None = None) -> None:
        """Return when everything settled so far is durable.

        Raises:
            StaleEpochError: Some of it belongs to claims that were lost, now or since the last commit; the rest was waited for.
            NotStoredError: Dead letters could not be stored; the rest was waited for.
            UnavailableError: Not in time.
        """
        goals = all_unsaved(self.engine)
        await self._wait_saved(goals)
        check_committed(self.engine, goals, caller)

    async def wait_idle(self, timeout_s: float) -> bool:
        """Tell whether everything there is right now was read and settled; looks at the database once to say yes."""
        deadline_s = time.monotonic() + timeout_s
        seen = self.engine.exchange_count
        self.engine.expect(time.monotonic())
        while time.monotonic() < deadline_s:
            self.check()
            self.check_there(self.engine.deleted)
            answer = read_to_end(self.engine, seen, assigned=self.assigned)
            if answer is not None:
                return answer
            if self.engine.exchange_count < seen + 2:
                self.engine.expect(time.monotonic())
            await self.changed.wait(0.02)
        return False

    async def _turn(self) -> None:
        """Let the other tasks have a turn from time to time.

        A loop over messages that are all in memory awaits nothing that is not there: without this the exchange that writes
        its acks and fetches more, and the heartbeat, would wait until the memory is empty.
        """
        if time.monotonic() < self._turn_until_s:
            return
        if not self._turning and self.loop is not None:
            self._turning = True
            self.loop.call_soon(self._next_turn)
        await asyncio.sleep(0)

    def _next_turn(self) -> None:
        self._turning = False
        self._turn_until_s = time.monotonic() + _TURN_S
