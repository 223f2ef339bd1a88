"""The explicit consumer and the workers of subscriptions for asyncio, both on an AsyncRuntime."""

import asyncio
import concurrent.futures
import contextlib
import contextvars
import inspect
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar
from weakref import WeakKeyDictionary

from coordinator.consumer.aio_runtime import AsyncRuntime
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
    is_async,
    keep_alive,
)
from coordinator.consumer.options import Options, check_poll
from coordinator.consumer.pacing import IDLE_ENDS_S
from coordinator.consumer.status import Status
from coordinator.consumer.telling import tell_refused
from coordinator.core.losses import Caller
from coordinator.core.subscription import Subscription
from coordinator.errors import ClosedError, DeletedError, FencedError, UnavailableError
from coordinator.model import Message

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    import psycopg

    from coordinator.core.ahead import Ahead

T = TypeVar("T")

# How long a cancelled handler may take to clean up.
_CLEAN_UP_S = 5.0
_LOOK_S = 0.05
# Of the loop, until everybody who is cancelled together has noticed.
_TURNS = 5


class Done:
    """Awaited, it does nothing; not awaited, nobody complains."""

    def __await__(self) -> Generator[Any, Any, None]:
        yield from ()


_DONE = Done()


class AsyncSettling:
    """What messages call: passes on to the runtime, and decodes.

    It acts at once, also where the caller is a handler in a thread: then in the loop, while the thread waits.
    """

    def __init__(self, runtime: AsyncRuntime, decode: Decode) -> None:
        self._runtime = runtime
        self._decode = decode
        self._thread_id = threading.get_ident()

    def ack(self, message: Message, *, wait: bool) -> Awaitable[None]:
        """Settle now; with `wait`, what is returned has to be awaited, and is over when that is durable."""
        here = threading.get_ident() == self._thread_id
        if not wait:
            if here:
                self._runtime.note_ack(message)
            else:
                self._in_loop(self._runtime.note_ack, message)
            return _DONE
        goal = self._in_loop(self._runtime.ack, message)
        saving = self._runtime.saved(goal)
        if here:
            return saving
        assert self._runtime.loop is not None
        asyncio.run_coroutine_threadsafe(saving, self._runtime.loop).result()
        return _DONE

    def nack(self, message: Message, delay_s: float | None) -> None:
        """See Message.nack."""
        self._in_loop(self._runtime.nack, message, delay_s)

    def reject(self, message: Message, reason: str) -> None:
        """See Message.reject."""
        self._in_loop(self._runtime.reject, message, reason)

    def extend(self, message: Message, seconds: float) -> bool:
        """See Message.extend."""
        return self._in_loop(self._runtime.extend, message, seconds)

    def transaction(
        self, message: Message, connection: Any
    ) -> "AbstractAsyncContextManager[psycopg.AsyncConnection[Any]]":
        """See Message.transaction."""
        return self._runtime.transaction([message], connection)

    def decode(self, message: Message) -> Any:
        """Decode a payload; bytes stay bytes."""
        return decoded(message, self._decode)

    def _in_loop(self, function: Callable[..., T], *arguments: Any) -> T:
        if threading.get_ident() == self._thread_id:
            return function(*arguments)
        answer: concurrent.futures.Future[T] = concurrent.futures.Future()

        def call() -> None:
            try:
                answer.set_result(function(*arguments))
            except BaseException as error:  # noqa: BLE001 - it is the thread's
                answer.set_exception(error)

        assert self._runtime.loop is not None
        self._runtime.loop.call_soon_threadsafe(call)
        return answer.result()


class _Remembering(AsyncSettling):
    """Settling that remembers which task has settled what, for `AsyncConsumer.commit`."""

    def __init__(self, runtime: AsyncRuntime, decode: Decode) -> None:
        super().__init__(runtime, decode)
        self._callers: WeakKeyDictionary[asyncio.Task[Any], Caller] = WeakKeyDictionary()
        self._elsewhere = Caller()

    @property
    def caller(self) -> Caller:
        """Of the current task; of all that is none, as threads and callbacks, together."""
        task = asyncio.current_task() if threading.get_ident() == self._thread_id else None
        if task is None:
            return self._elsewhere
        caller = self._callers.get(task)
        if caller is None:
            caller = self._callers[task] = Caller()
        return caller

    def ack(self, message: Message, *, wait: bool) -> Awaitable[None]:
        saving = super().ack(message, wait=wait)
        if not wait:
            self._note(message)
        return saving

    def nack(self, message: Message, delay_s: float | None) -> None:
        super().nack(message, delay_s)
        self._note(message)

    def reject(self, message: Message, reason: str) -> None:
        super().reject(message, reason)
        self._note(message)

    def _note(self, message: Message) -> None:
        caller = self.caller
        if caller.last is not message.owner:
            caller.note(message.owner)


_CLOSED = "this consumer was closed; make another one, or close it later"


class AsyncConsumer:
    """`Consumer` for asyncio: for one task. Use it as `async with`, and `async for` over it."""

    def __init__(self, runtime: AsyncRuntime, options: Options, decode: Decode, *, auto_ack: bool) -> None:
        self._runtime = runtime
        self._options = options
        self._decode = decode
        self._auto_ack = auto_ack
        self._pending: list[Message] = []
        self._settling: _Remembering | None = None
        self._ahead: Ahead | None = None
        self._subscriptions: list[Subscription] = []
        self._starting = asyncio.Lock()
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

    async def start(self) -> Self:
        """Join the group; done by `async with`, by iterating and by `poll`.

        Raises:
            NotFoundError: No such topic.
            UnavailableError: No server.
            ClosedError: It was closed before it was used.
        """
        async with self._starting:
            if not self._started:
                if self._closed:
                    raise ClosedError(_CLOSED)
                self._settling = _Remembering(self._runtime, self._decode)
                await self._runtime.start([self._options], self._settling)
                self._subscriptions = list(self._runtime.engine.subscriptions.values())
                self._started = True
                if self._closed:
                    # By another task meanwhile, which found nothing to stop.
                    await self._runtime.stop(self._runtime.settings.commit_timeout_s)  # type: ignore[unreachable]
        return self

    async def poll(self, max_messages: int = 1, timeout_s: float | None = None) -> list[Message]:
        """Wait for messages and return up to `max_messages`; empty after the timeout, or once closed.

        With automatic acks, what the call before returned is settled by this one. Cancelled, it has taken nothing.
        """
        check_poll(max_messages, timeout_s)
        if self._closed:
            return []
        if not self._started:
            await self.start()
        if self._auto_ack:
            self._ack_pending()
        if self._ahead is not None and self._ahead.messages:
            # An iteration has ended before them.
            self._runtime.engine.reclaim()
        taken = await self._runtime.take(self._subscriptions, max_messages, timeout_s)
        if self._auto_ack:
            self._pending = taken
        return taken

    def __aiter__(self) -> Self:
        """Yield messages for ever, until `close` is called (by another task, or in the loop)."""
        return self

    async def __anext__(self) -> Message:
        while not self._closed:
            if not self._started:
                await self.start()
            if self._auto_ack:
                self._ack_pending()
            if self._ahead is None:
                self._ahead = self._runtime.open_ahead()
            message = self._runtime.start_ahead(self._ahead)
            if message is None:
                taken = await self._runtime.take_one(self._subscriptions, self._ahead, None)
                if not taken:
                    continue
                message = taken[0]
            if self._auto_ack:
                self._pending = [message]
            return message
        raise StopAsyncIteration

    async def batches(self, max_messages: int = 500, timeout_s: float | None = None) -> AsyncIterator[list[Message]]:
        """Yield lists of up to `max_messages`; after `timeout_s` without any, an empty one.

        A message that has failed before comes in a list of its own.
        """
        while not self._closed:
            batch = await self.poll(max_messages, timeout_s)
            if batch or timeout_s is not None:
                yield batch

    def transaction(
        self, messages: Sequence[Message], connection: object = None
    ) -> "AbstractAsyncContextManager[psycopg.AsyncConnection[Any]]":
        """`Message.transaction` for a batch: its effects and all its acks, or nothing."""
        return self._runtime.transaction(messages, connection)

    def pause(self) -> None:
        """Hand nothing over until `resume`; the claims are kept."""
        self._runtime.engine.pause(self._subscriptions, paused=True)

    def resume(self) -> None:
        """Go on after `pause`."""
        self._runtime.engine.pause(self._subscriptions, paused=False)
        self._runtime.ready.ring()

    def status(self) -> Status:
        """`Consumer.status`."""
        return self._runtime.status()

    def assignment(self) -> set[tuple[str, int]]:
        """The partitions that this member owns right now: topic and number."""
        return {(p.source.topic, p.source.partition) for p in self._runtime.engine.partitions.values()}

    def blocked_keys(self) -> list[tuple[str, int, str, int]]:
        """Keys that a parked message blocks: topic, partition, key, and how many messages wait."""
        engine = self._runtime.engine
        engine.take_in()
        return [
            (partition.source.topic, partition.source.partition, key, count)
            for partition in engine.partitions.values()
            for key, count in partition.lanes.blocked()
        ]

    async def commit(self) -> None:
        """`Consumer.commit`; tasks in place of threads."""
        if self._started:
            assert self._settling is not None
            await self._runtime.commit(self._settling.caller)

    async def at_end(self, timeout_s: float = 5.0) -> bool:
        """Tell whether this member has read and settled everything that there is right now in what it owns."""
        await self.start()
        if self._auto_ack:
            self._ack_pending()
        return await self._runtime.wait_idle(timeout_s)

    async def close(self) -> None:
        """`Consumer.close`: write what is settled, give back the rest at once, leave the group. Harmless when repeated.

        Cancelled, it takes a second at most for that, and the connections are closed in any case; what could not be given back
        within it is given back by the end of the lease.
        """
        if self._closed:
            return
        self._closed = True
        if self._started:
            await self._runtime.stop(self._runtime.settings.commit_timeout_s)
            if self._runtime.unsaved is not None:
                raise self._runtime.unsaved

    def _ack_pending(self) -> None:
        pending, self._pending = self._pending, []
        for message in pending:
            try:
                message.ack()
            except FencedError as error:
                tell_refused(message, error)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # What the body was working on when it raised is not done.
        if kind is None and self._auto_ack and not self._closed:
            self._ack_pending()
        try:
            await self.close()
        except UnavailableError:
            # What the body has raised says more.
            if kind is None:
                raise


class AsyncWorkers:
    """Runs the handlers of subscriptions, each in as many tasks as it asks for, on one runtime."""

    def __init__(self, runtime: AsyncRuntime, registrations: Sequence[Registration], decode: Decode) -> None:
        self._runtime = runtime
        self._registrations = registrations
        self._decode = decode
        self._outcomes = Outcomes(runtime)
        self._stopping = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.left_count = 0

    async def start(self) -> None:
        """Join all groups, then start the handlers' tasks; raises as AsyncConsumer.start."""
        settling = AsyncSettling(self._runtime, self._decode)
        await self._runtime.start([registration.options for registration in self._registrations], settling)
        for registration in self._registrations:
            mine = registration.subscriptions(self._runtime.engine)
            for number in range(registration.options.concurrency):
                name = f"coordinator-handler-{registration.options.group}-{number}"
                work = self._runtime.guard(self._worker(registration, mine))
                self._tasks.add(asyncio.create_task(work, name=name))

    async def stop(self, *, at_once: Callable[[], bool] = lambda: False) -> bool:
        """Let running handlers finish within the drain timeout, cancel the others; write, release, leave.

        Args:
            at_once: Asked again and again; True ends the waiting.

        Returns:
            False if a handler had to be cancelled, or not everything could be released; what it had is given back, and it
            is not charged.
        """
        self._stopping = True
        deadline_s = time.monotonic() + self._runtime.settings.drain_timeout_s
        self._runtime.engine.drain()
        self._runtime.ready.ring()
        running = {task for task in self._tasks if not task.done()}
        idle_ended_s = time.monotonic() + IDLE_ENDS_S
        while running and time.monotonic() < deadline_s and not (time.monotonic() >= idle_ended_s and at_once()):
            _, running = await asyncio.wait(running, timeout=_LOOK_S)
        self.left_count = len(running)
        if running:
            for task in running:
                task.cancel()
            await asyncio.wait(running, timeout=_CLEAN_UP_S)
        released = await self._runtime.stop(self._runtime.settings.commit_timeout_s)
        return released and not self.left_count

    async def _worker(self, registration: Registration, subscriptions: Sequence[Subscription]) -> None:
        """Work until the stop; a cancel that a handler has called on its own task, and that came late, ends nothing."""
        options = registration.options
        # Those in transactions wait for the server anyway.
        ahead = None if options.transactional or options.batch_size > 1 else self._runtime.open_ahead()
        try:
            while True:
                try:
                    return await self._work(registration, subscriptions, ahead)
                except asyncio.CancelledError:
                    if await self._ends():
                        raise
        finally:
            if ahead is not None:
                self._runtime.close_ahead(ahead)

    async def _ends(self) -> bool:
        """Tell whether a cancel ends this worker. Else it was meant for a handler, by whom it may be, and is taken back."""
        task = asyncio.current_task()
        assert task is not None
        if not self._stopping:
            while task.cancelling():
                task.uncancel()
            # It may not have been delivered yet; and who ends the loop cancels all its tasks: `run` has its turn, and stops.
            for _ in range(_TURNS):
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)
        return self._stopping

    async def _work(
        self, registration: Registration, subscriptions: Sequence[Subscription], ahead: "Ahead | None"
    ) -> None:
        options = registration.options
        task = asyncio.current_task()
        assert task is not None
        blocks = not is_async(registration.handler)
        times = self._runtime.counting.handler(options.group)
        while not self._stopping and self._runtime.failure is None:
            try:
                if ahead is None:
                    batch = await self._runtime.take(subscriptions, options.batch_size, 1.0)
                else:
                    message = self._runtime.start_ahead(ahead)
                    batch = (
                        [message] if message is not None else await self._runtime.take_one(subscriptions, ahead, 1.0)
                    )
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
                    returned = await self._call(registration, batch, blocks=blocks)
                finally:
                    if began_s >= times.next_s:
                        times.note(batch[0].topic, began_s, time.monotonic())
            except asyncio.CancelledError as error:
                if await self._ends():
                    self._outcomes.interrupted(batch)
                    raise
                # What it has waited for was cancelled, or it was itself, by a limit of its own: a failure like any other.
                self._outcomes.failed(batch, error)
            except PartlyFailedError as error:
                self._outcomes.partly_failed(error.results)
            except (FencedError, NotBegunError) as error:
                self._outcomes.not_charged(batch, error)
            except UnavailableError as error:
                if await self._runtime.saw_outage(began_s):
                    self._outcomes.not_charged(batch, error)
                else:
                    self._outcomes.failed(batch, error)
            except BaseException as error:  # noqa: BLE001 - sys.exit() in a handler must not end its worker unnoticed
                self._outcomes.failed(batch, error)
            else:
                if not options.transactional:
                    self._outcomes.done(batch, returned, options)
            if task.cancelling():
                # It came when the handler was done: not for the next one.
                await self._ends()

    async def _call(self, registration: Registration, batch: list[Message], *, blocks: bool) -> object:
        options = registration.options
        argument: object = batch if options.batch_size > 1 else batch[0]
        if blocks:
            returned = await in_thread(registration.handler, argument)
            returned = await returned if inspect.isawaitable(returned) else returned
        elif not options.transactional:
            returned = await registration.handler(argument)  # type: ignore[misc] # is_async tells that it is awaitable
        else:
            async with contextlib.AsyncExitStack() as stack:
                try:
                    connection = await stack.enter_async_context(self._runtime.transaction(batch))
                except UnavailableError as error:
                    raise NotBegunError(str(error)) from error
                returned = await registration.handler(argument, connection)  # type: ignore[misc] # as above
                check_results(batch, returned, options)
            check_acked(batch)
            return None
        if returned is not None:
            check_ran(returned)
        return returned


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Run a handler that blocks in a thread of its own.

    Not asyncio.to_thread: its few threads would bound the concurrency, and the interpreter waits for them at its end, so that a
    handler that never returns would keep the process.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            returned = context.run(function, *arguments)
        except BaseException as error:  # noqa: BLE001 - it is the handler's
            told = RuntimeError(f"the handler raised {error!r}") if isinstance(error, StopIteration) else error
            tell = (result.set_exception, told)
        else:
            tell = (result.set_result, returned)  # type: ignore[assignment]
        # An error: the loop is closed, and nobody waits.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_unless_done, result, *tell)

    threading.Thread(target=work, name="coordinator-handler", daemon=True).start()
    return await result


def _unless_done(result: asyncio.Future[Any], tell: Callable[[Any], None], value: object) -> None:
    if not result.done():
        tell(value)
