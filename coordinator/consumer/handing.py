"""What handlers' threads call: take messages, settle them, wait until that is durable."""

import random
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from coordinator.consumer.base import Base
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
from coordinator.consumer.transaction import transaction
from coordinator.consumer.yielding import YIELD_S
from coordinator.core.ahead import Ahead
from coordinator.core.loop import Subscription
from coordinator.core.losses import Caller
from coordinator.core.retry import Failure
from coordinator.db.connect import Pool
from coordinator.model import Message
from coordinator.protocol.check import number
from coordinator.settings import Settings

if TYPE_CHECKING:
    import contextlib

    import psycopg


class Handing(Base):
    """Messages go out, what became of them comes in; the loops do the rest."""

    def __init__(self, dsn: str, schema: str, settings: Settings, client_id: str, static_id: str | None = None) -> None:
        super().__init__(dsn, schema, settings, client_id, static_id)
        # Threads that wait in `take`; changed under the lock.
        self._takers = 0
        self._handlers_pool: Pool | None = None

    def open_ahead(self) -> Ahead:
        """Make what one taker holds ahead, for `start_ahead` and `take`."""
        with self.lock:
            return self.engine.open_ahead(ahead_of(self.settings))

    def close_ahead(self, ahead: Ahead) -> None:
        """Give back what was not started of it."""
        with self.changed:
            self.engine.close_ahead(ahead)
            self.changed.notify_all()

    def start_ahead(self, ahead: Ahead) -> Message | None:
        """Start a message that the taker was handed ahead; None where `take` has to be asked."""
        if ahead.messages and time.monotonic() < self.engine.lease_until_s:
            return ahead.start()
        return None

    def take(
        self,
        subscriptions: Sequence[Subscription],
        max_count: int,
        timeout_s: float | None,
        ahead: Ahead | None = None,
    ) -> list[Message]:
        """Wait until messages may start, and hand them over; empty after the timeout, or when the coordinator stops.

        Raises:
            DeletedError: What one of the subscriptions reads was deleted.
        """
        with self.changed:
            self.check_there(subscriptions)
            if self._interpreter.wanted() or (self._busy_since_s is None and self._wake.is_set()):
                self._stand_back()
            now_s = time.monotonic()
            taken = self.engine.take(subscriptions, max_count, now_s, ahead)
            if taken:
                if now_s >= self.counting.sample_at_s:
                    self.counting.taken(taken[0])
                return taken
            # Before the first look: an ack that is noted after it sees that somebody waits.
            self._takers += 1
            try:
                taken = self._await_some(subscriptions, max_count, timeout_s, ahead)
            finally:
                self._takers -= 1
            if taken:
                self.counting.taken(taken[0])
            return taken

    def _stand_back(self) -> None:
        """Let the work loop have the interpreter, with the lock held; see Interpreter."""
        if self.changed.wait(YIELD_S):
            # It was meant for somebody who waits.
            self.changed.notify()

    def _await_some(
        self, subscriptions: Sequence[Subscription], max_count: int, timeout_s: float | None, ahead: Ahead | None
    ) -> list[Message]:
        """Wait with the lock held."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            taken = self.engine.take(subscriptions, max_count, time.monotonic(), ahead)
            if taken or self._stopping.is_set() or self.engine.draining:
                return taken
            self.check()
            self.check_there(subscriptions)
            left_s = 1.0 if deadline_s is None else deadline_s - time.monotonic()
            if left_s <= 0:
                return taken
            self.changed.wait(min(left_s, 1.0))

    def ack(self, message: Message, *, wait: bool) -> None:
        """Settle; see Message.ack."""
        if not wait:
            self.engine.note_ack(message, time.monotonic())
            if self._takers:
                with self.changed:
                    self.engine.take_in()
                    if message.owner.subscription.runnable:
                        self.changed.notify()
            return
        with self.changed:
            partition = self.engine.ack(message, time.monotonic())
            if partition.subscription.runnable:
                self.changed.notify()
            goal = (partition, partition.settled_count)
            self._wait_saved([goal])
            check_ack(self.engine, *goal)

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
        with self.changed:
            verdict = self.engine.fail(
                message.delivery,
                error,
                failure,
                time.monotonic(),
                random.random(),  # noqa: S311
                delay_s=delay_s,
            )
            self.changed.notify()
        tell_verdict(message, verdict)

    def give_back(self, message: Message, pause_s: float) -> None:
        """Take a delivery back without a charge; its partition starts nothing for so long."""
        assert message.delivery is not None
        with self.changed:
            self.engine.give_back(message.delivery, time.monotonic(), pause_s)
            self.changed.notify()

    def extend(self, message: Message, seconds: float) -> bool:
        """Move the deadline; see Message.extend."""
        assert message.delivery is not None
        with self.lock:
            now_s = time.monotonic()
            return self.engine.extend(message.delivery, now_s + number("seconds", seconds, 0), now_s)

    def transaction(
        self, messages: Sequence[Message], connection: object = None
    ) -> "contextlib.AbstractContextManager[psycopg.Connection[Any]]":
        """A transaction in which messages are acked at the end; see Message.transaction."""
        return transaction(self, messages, connection)

    def handlers_pool(self) -> Pool:
        """Connections for handlers' transactions; nothing of ours limits them but their number."""
        with self.lock:
            if self._handlers_pool is None:
                self._handlers_pool = Pool(
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

    def commit(self, caller: Caller | None = None) -> None:
        """Return when everything settled so far is durable.

        Raises:
            StaleEpochError: Some of it belongs to claims that were lost, now or since the last commit; the rest was waited for.
            NotStoredError: Dead letters could not be stored; the rest was waited for.
            UnavailableError: Not in time.
        """
        with self.changed:
            goals = all_unsaved(self.engine)
            self._wait_saved(goals)
            check_committed(self.engine, goals, caller)

    def wait_idle(self, timeout_s: float) -> bool:
        """Tell whether everything there is right now was read and settled; looks at the database once to say yes."""
        deadline_s = time.monotonic() + timeout_s
        with self.changed:
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
                self.changed.wait(0.02)
            return False

    def _wait_saved(self, goals: Goals) -> None:
        """Wait with the lock held."""
        deadline_s = time.monotonic() + self.settings.commit_timeout_s
        self.engine.flush()
        while not reached(goals):
            self.check()
            if time.monotonic() >= deadline_s:
                raise not_in_time(self.settings.commit_timeout_s)
            self.engine.flush()
            self.changed.wait(0.5)
