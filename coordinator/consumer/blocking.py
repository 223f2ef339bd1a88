"""The explicit consumer and the workers of subscriptions, both on a Runtime."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from coordinator.consumer.handlers import (
    Decode,
    NotBegunError,
    Outcomes,
    PartlyFailedError,
    Registration,
    check_acked,
    check_ran,
    check_results,
    decoded,
    keep_alive,
)
from coordinator.consumer.options import Options, check_poll
from coordinator.consumer.pacing import IDLE_ENDS_S
from coordinator.consumer.runtime import Runtime
from coordinator.consumer.status import Status
from coordinator.consumer.telling import tell_refused
from coordinator.core.losses import Caller
from coordinator.core.subscription import Subscription
from coordinator.errors import ClosedError, DeletedError, FencedError, UnavailableError
from coordinator.model import Message

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import psycopg


class Settling:
    """What messages call: passes on to the runtime, and decodes."""

    def __init__(self, runtime: Runtime, decode: Decode) -> None:
        self._runtime = runtime
        self._decode = decode
        self.ack = runtime.ack
        self.nack = runtime.nack
        self.reject = runtime.reject
        self.extend = runtime.extend

    def transaction(self, message: Message, connection: Any) -> "AbstractContextManager[psycopg.Connection[Any]]":
        """See Message.transaction."""
        return self._runtime.transaction([message], connection)

    def decode(self, message: Message) -> Any:
        """Decode a payload; bytes stay bytes."""
        return decoded(message, self._decode)


class _Remembering(Settling):
    """Settling that remembers which thread has settled what, for `Consumer.commit`."""

    def __init__(self, runtime: Runtime, decode: Decode) -> None:
        super().__init__(runtime, decode)
        self._callers = _Callers()
        self.ack = self._ack
        self.nack = self._nack
        self.reject = self._reject

    @property
    def caller(self) -> Caller:
        return self._callers.caller

    def _ack(self, message: Message, *, wait: bool) -> None:
        self._runtime.ack(message, wait=wait)
        if not wait:
            caller = self._callers.caller
            if caller.last is not message.owner:
                caller.note(message.owner)

    def _nack(self, message: Message, delay_s: float | None) -> None:
        self._runtime.nack(message, delay_s)
        self._callers.caller.note(message.owner)

    def _reject(self, message: Message, reason: str) -> None:
        self._runtime.reject(message, reason)
        self._callers.caller.note(message.owner)


class _Callers(threading.local):
    def __init__(self) -> None:
        self.caller = Caller()


_CLOSED = "this consumer was closed; make another one, or close it later"


class Consumer:
    """Messages of a group, one at a time or in batches; for one thread.

    What order allows is handed over: with ordering="partition" the next message of a partition when the one before is
    settled, with "key" the next of a key. Use it as a context manager: leaving it writes what is settled, gives back what
    is not, and leaves the group.
    """

    def __init__(self, runtime: Runtime, options: Options, decode: Decode, *, auto_ack: bool) -> None:
        self._runtime = runtime
        self._options = options
        self._settling = _Remembering(runtime, decode)
        self._auto_ack = auto_ack
        self._pending: list[Message] = []
        self._subscriptions: list[Subscription] = []
        self._starting = threading.Lock()
        self._started = False
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def member_id(self) -> str:
        """The id under which this consumer is a member now; a new one after it was fenced."""
        return str(self._runtime.id)

    def start(self) -> Self:
        """Join the group; done by `with`, by iterating and by `poll`.

        Raises:
            NotFoundError: No such topic.
            UnavailableError: No server.
            ClosedError: It was closed before it was used.
        """
        with self._starting:
            if not self._started:
                if self._closed:
                    raise ClosedError(_CLOSED)
                self._runtime.start([self._options], self._settling)
                self._subscriptions = list(self._runtime.engine.subscriptions.values())
                self._started = True
                if self._closed:
                    # By another thread meanwhile, which found nothing to stop.
                    self._runtime.stop(self._runtime.settings.commit_timeout_s)  # type: ignore[unreachable]
        return self

    def poll(self, max_messages: int = 1, timeout_s: float | None = None) -> list[Message]:
        """Wait for messages and return up to `max_messages`; empty after the timeout, or once closed.

        With automatic acks, what the call before returned is settled by this one.
        """
        check_poll(max_messages, timeout_s)
        if self._closed:
            return []
        if not self._started:
            self.start()
        if self._auto_ack:
            self._ack_pending()
        taken = self._runtime.take(self._subscriptions, max_messages, timeout_s)
        if self._auto_ack:
            self._pending = taken
        return taken

    def __iter__(self) -> Iterator[Message]:
        """Yield messages for ever, until `close` is called (by another thread, or in the loop)."""
        if self._closed:
            return
        self.start()
        ahead, start_ahead = self._runtime.open_ahead(), self._runtime.start_ahead
        try:
            while not self._closed:
                if self._auto_ack:
                    self._ack_pending()
                message = start_ahead(ahead)
                if message is None:
                    taken = self._runtime.take(self._subscriptions, 1, None, ahead)
                    if not taken:
                        continue
                    message = taken[0]
                if self._auto_ack:
                    self._pending = [message]
                yield message
        finally:
            self._runtime.close_ahead(ahead)

    def batches(self, max_messages: int = 500, timeout_s: float | None = None) -> Iterator[list[Message]]:
        """Yield lists of up to `max_messages`; after `timeout_s` without any, an empty one.

        A message that has failed before comes in a list of its own.
        """
        while not self._closed:
            batch = self.poll(max_messages, timeout_s)
            if batch or timeout_s is not None:
                yield batch

    def transaction(
        self, messages: Sequence[Message], connection: object = None
    ) -> "AbstractContextManager[psycopg.Connection[Any]]":
        """`Message.transaction` for a batch: its effects and all its acks, or nothing."""
        return self._runtime.transaction(messages, connection)

    def pause(self) -> None:
        """Hand nothing over until `resume`; the claims are kept."""
        with self._runtime.lock:
            self._runtime.engine.pause(self._subscriptions, paused=True)

    def resume(self) -> None:
        """Go on after `pause`."""
        with self._runtime.changed:
            self._runtime.engine.pause(self._subscriptions, paused=False)
            self._runtime.changed.notify_all()

    def status(self) -> Status:
        """What this consumer is doing right now: what is in flight and for how long, what waits and why."""
        return self._runtime.status()

    def assignment(self) -> set[tuple[str, int]]:
        """The partitions that this member owns right now: topic and number."""
        with self._runtime.lock:
            return {(p.source.topic, p.source.partition) for p in self._runtime.engine.partitions.values()}

    def blocked_keys(self) -> list[tuple[str, int, str, int]]:
        """Keys that a parked message blocks: topic, partition, key, and how many messages wait."""
        with self._runtime.lock:
            self._runtime.engine.take_in()
            return [
                (partition.source.topic, partition.source.partition, key, count)
                for partition in self._runtime.engine.partitions.values()
                for key, count in partition.lanes.blocked()
            ]

    def commit(self) -> None:
        """Return when everything settled so far is durable.

        Of a lost claim the next commit is told; and besides, each thread that had settled something of it, by its own next one.

        Raises:
            StaleEpochError: Some of it belongs to claims that were lost meanwhile.
            NotStoredError: A dead letter could not be stored; it is tried again.
            UnavailableError: Not within commit_timeout_s.
        """
        if self._started:
            self._runtime.commit(self._settling.caller)

    def at_end(self, timeout_s: float = 5.0) -> bool:
        """Tell whether this member has read and settled everything that there is right now in what it owns."""
        self.start()
        if self._auto_ack:
            self._ack_pending()
        return self._runtime.wait_idle(timeout_s)

    def close(self) -> None:
        """Write what is settled, give back the rest at once, leave the group. Harmless when repeated.

        Claims that were lost before are no error: what was settled of them is delivered again by their owners. `commit` tells.

        Raises:
            NotStoredError: A dead letter could not be stored: its message will be delivered again.
            UnavailableError: What was settled last could not be written within commit_timeout_s: it may be delivered again.
        """
        if self._closed:
            return
        self._closed = True
        if self._started:
            self._runtime.stop(self._runtime.settings.commit_timeout_s)
            if self._runtime.unsaved is not None:
                raise self._runtime.unsaved

    def _ack_pending(self) -> None:
        pending, self._pending = self._pending, []
        for message in pending:
            try:
                message.ack()
            except FencedError as error:
                tell_refused(message, error)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # What the body was working on when it raised is not done.
        if kind is None and self._auto_ack and not self._closed:
            self._ack_pending()
        try:
            self.close()
        except UnavailableError:
            # What the body has raised says more.
            if kind is None:
                raise


class _Forks:
    """How many forks lie between the first process and this one: known without a system call for each message."""

    def __init__(self) -> None:
        self.count = 0
        os.register_at_fork(after_in_child=self._one_more)

    def _one_more(self) -> None:
        self.count += 1


_forks = _Forks()


class Workers:
    """Runs the handlers of subscriptions, each in as many threads as it asks for, on one runtime."""

    def __init__(self, runtime: Runtime, registrations: Sequence[Registration], decode: Decode) -> None:
        self._runtime = runtime
        self._registrations = registrations
        self._settling = Settling(runtime, decode)
        self._outcomes = Outcomes(runtime)
        self._stopping = threading.Event()
        self._forks = _forks.count
        self._threads: list[threading.Thread] = []
        self.left_count = 0

    def start(self) -> None:
        """Join all groups, then start the handlers' threads; raises as Consumer.start."""
        self._runtime.start([registration.options for registration in self._registrations], self._settling)
        for registration in self._registrations:
            options = registration.options
            mine = registration.subscriptions(self._runtime.engine)
            for number in range(options.concurrency):
                name = f"coordinator-handler-{options.group}-{number}"
                # Guarded: a worker that a bug of ours ends must end the run, or its group stands still and looks alive.
                work = partial(self._work, registration, mine)
                thread = threading.Thread(target=self._runtime.guard, args=(work,), name=name, daemon=True)
                self._threads.append(thread)
                thread.start()

    def stop(self, *, at_once: Callable[[], bool] = lambda: False) -> bool:
        """Let running handlers finish within the drain timeout, write, release, leave.

        Args:
            at_once: Asked again and again; True ends the waiting.

        Returns:
            False if a handler had to be left behind, or not everything could be released; what it had is given back,
            and it is not charged.
        """
        self._stopping.set()
        deadline_s = time.monotonic() + self._runtime.settings.drain_timeout_s
        idle_ended_s = time.monotonic() + IDLE_ENDS_S
        with self._runtime.changed:
            self._runtime.engine.drain()
            self._runtime.changed.notify_all()
        while any(thread.is_alive() for thread in self._threads) and time.monotonic() < deadline_s:
            # Whoever has nothing in hand ends within this, also when both signals come at once.
            if time.monotonic() >= idle_ended_s and at_once():
                break
            for thread in self._threads:
                thread.join(0.05)
                if thread.is_alive():
                    break
        self.left_count = sum(thread.is_alive() for thread in self._threads)
        released = self._runtime.stop(self._runtime.settings.commit_timeout_s)
        return released and not self.left_count

    def _work(self, registration: Registration, subscriptions: Sequence[Subscription]) -> None:
        options = registration.options
        times = self._runtime.counting.handler(options.group)
        # Those in transactions wait for the server anyway.
        ahead = None if options.transactional or options.batch_size > 1 else self._runtime.open_ahead()
        while not self._stopping.is_set() and self._runtime.failure is None:
            try:
                if ahead is None:
                    batch = self._runtime.take(subscriptions, options.batch_size, 1.0)
                else:
                    message = self._runtime.start_ahead(ahead)
                    batch = [message] if message is not None else self._runtime.take(subscriptions, 1, 1.0, ahead)
            except DeletedError:
                subscriptions = [each for each in subscriptions if each.deleted is None]
                if not subscriptions:
                    return
                continue
            if not batch:
                continue
            began_s = time.monotonic()
            keep_alive(batch, began_s + options.max_processing_s)
            try:
                try:
                    returned = self._call(registration, batch)
                finally:
                    if began_s >= times.next_s:
                        times.note(batch[0].topic, began_s, time.monotonic())
            except PartlyFailedError as error:
                self._outcomes.partly_failed(error.results)
            except (FencedError, NotBegunError) as error:
                self._outcomes.not_charged(batch, error)
            except UnavailableError as error:
                # A message that makes its handler lose its session, while the server is there, must not be tried for ever.
                if self._runtime.saw_outage(began_s):
                    self._outcomes.not_charged(batch, error)
                else:
                    self._outcomes.failed(batch, error)
            except BaseException as error:  # noqa: BLE001 - sys.exit() in a handler must not end its worker unnoticed
                self._outcomes.failed(batch, error)
            else:
                if not options.transactional:
                    self._outcomes.done(batch, returned, options)

    def _handled(self, registration: Registration, *arguments: object) -> object:
        """Call a handler. A child that it forked, and that comes back here, ends: it would consume on our sockets."""
        try:
            return registration.handler(*arguments)
        finally:
            if _forks.count != self._forks:
                os._exit(os.EX_OK)

    def _call(self, registration: Registration, batch: list[Message]) -> object:
        options = registration.options
        argument: object = batch if options.batch_size > 1 else batch[0]
        if not options.transactional:
            returned = self._handled(registration, argument)
            if returned is not None:
                check_ran(returned)
            return returned
        with contextlib.ExitStack() as stack:
            try:
                connection = stack.enter_context(self._runtime.transaction(batch))
            except UnavailableError as error:
                raise NotBegunError(str(error)) from error
            check_results(batch, self._handled(registration, argument, connection), options)
        check_acked(batch)
        return None
