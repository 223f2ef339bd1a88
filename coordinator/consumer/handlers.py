"""What the workers of both shells do around a handler."""

import contextlib
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from coordinator.consumer.options import Options, failure_of, results_of
from coordinator.consumer.pacing import OUTAGE_PAUSE_S
from coordinator.consumer.telling import place_of, tell_refused
from coordinator.core.loop import Engine
from coordinator.core.retry import Failure
from coordinator.core.subscription import Subscription
from coordinator.errors import ConfigError, FencedError, HandlerError, Reject
from coordinator.model import BYTES_CONTENT, Message
from coordinator.observe import events
from coordinator.observe.logs import logger

log = logger()

Decode = Callable[[bytes], Any]
Handler = Callable[..., object]


@dataclass(frozen=True, slots=True)
class Registration:
    """One @subscribe."""

    handler: Handler
    options: Options

    def subscriptions(self, engine: Engine) -> list[Subscription]:
        """Return what it reads, once its group is joined."""
        return [each for each in engine.subscriptions.values() if self.options.reads(each)]


def is_async(handler: Handler) -> bool:
    """Tell a coroutine function, or an object that is called like one, from one that would block the loop."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


def check_hook(options: Options, *, coroutines: bool) -> None:
    """Look at on_dead_letter.

    Raises:
        ConfigError: It is a coroutine function where nobody would await it.
    """
    hook = options.on_dead_letter
    if hook is not None and not coroutines and is_async(hook):
        raise ConfigError(f"on_dead_letter: {hook!r} is a coroutine function, which Coordinator would not await")


def _is_generator(handler: Handler) -> bool:
    return any(
        inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each)
        for each in (handler, getattr(handler, "__call__", None))  # noqa: B004
    )


def register(registered: list[Registration], handler: Handler, options: Options, *, coroutines: bool) -> None:
    """Enter a handler, if it can be what it is asked to be.

    Raises:
        ConfigError: It could not be called; a topic of that group has a handler already; or it is a generator, or a coroutine
            function where nobody would await it: what it returns would be taken for "done", and nothing would have run.
    """
    name = getattr(handler, "__qualname__", repr(handler))
    if is_async(handler) and not coroutines:
        raise ConfigError(f"{name} is a coroutine function, which Coordinator would not await; use AsyncCoordinator")
    check_hook(options, coroutines=coroutines)
    if _is_generator(handler):
        raise ConfigError(f"{name} is a generator function: calling it runs nothing of it; wanted one without yield")
    wanted = (
        "(message, connection)" if options.transactional else "(messages)" if options.batch_size > 1 else "(message)"
    )
    if options.transactional and options.batch_size > 1:
        wanted = "(messages, connection)"
    try:
        inspect.signature(handler).bind(*wanted.split(", "))
    except TypeError as error:
        raise ConfigError(f"{name} cannot be called with {wanted}: {error}") from error
    except ValueError:
        pass  # a builtin that does not tell its signature
    for known in registered:
        twice = sorted(set(known.options.topics) & set(options.topics))
        if known.options.group == options.group and twice:
            raise ConfigError(
                f"group {options.group!r} has a handler for topic {twice[0]!r} already; two would share its messages at random, "
                "so give the second its own group"
            )
    registered.append(Registration(handler, options))


def decoded(message: Message, decode: Decode) -> Any:
    """Decode a payload; bytes stay bytes.

    Raises:
        HandlerError: It is not what the codec takes.
    """
    if message.content_type == BYTES_CONTENT:
        return message.payload
    try:
        return decode(message.payload)
    except Exception as error:
        raise HandlerError(
            f"{message.topic}/{message.partition}@{message.offset}: the payload is not what the codec takes: {error}"
        ) from error


def keep_alive(batch: Sequence[Message], until_s: float) -> None:
    """Their deadlines are moved on until then, as long as their handler is at it."""
    for message in batch:
        if message.delivery is not None:
            message.delivery.extend_until_s = until_s


class Answers(Protocol):
    """What a runtime takes for its workers; the threads' and asyncio's have it."""

    def fail(self, message: Message, error: BaseException | None, failure: Failure) -> None: ...

    def give_back(self, message: Message, pause_s: float) -> None: ...


class Outcomes:
    """Tells the runtime what became of handlers' work; a claim that is lost meanwhile is no error to anybody."""

    def __init__(self, runtime: Answers) -> None:
        self._runtime = runtime

    def done(self, batch: Sequence[Message], returned: object, options: Options) -> None:
        """Settle what a handler has returned from, each message of a batch as its result says."""
        results = results_of(batch, returned) if options.batch_size > 1 else [(batch[0], None)]
        for message, error in results:
            if error is None:
                self.ack(message)
            else:
                self.failed([message], error)

    def partly_failed(self, results: Sequence[tuple[Message, BaseException | None]]) -> None:
        """A transaction was rolled back for some of its messages: the others are not charged."""
        for message, error in results:
            if error is not None:
                self.failed([message], error)
        # Each goes to the head of what is ready: the last one first, so that they come in the order of offsets again.
        for message, error in reversed(results):
            if error is None:
                self._give_back(message, 0.0)

    def failed(self, batch: Sequence[Message], error: BaseException) -> None:
        """A handler has raised."""
        for message in batch:
            # Who rejects has decided something, and told so: no stack is needed to understand it.
            if not isinstance(error, Reject):
                log.warning(events.HANDLER_FAILED, extra=place_of(message), exc_info=error)
            try:
                self._runtime.fail(message, error, failure_of(error))
            except FencedError as fenced:
                tell_refused(message, fenced)

    def not_charged(self, batch: Sequence[Message], error: Exception) -> None:
        """The claim is another's, another run was first, or there is no database: no failure of the handler."""
        for message in reversed(batch):
            tell_refused(message, error)
            self._give_back(message, OUTAGE_PAUSE_S)

    def interrupted(self, batch: Sequence[Message]) -> None:
        """A handler was cancelled: no failure of it."""
        for message in reversed(batch):
            log.warning(events.HANDLER_INTERRUPTED, extra=place_of(message))
            self._give_back(message, OUTAGE_PAUSE_S)

    def ack(self, message: Message) -> None:
        try:
            message.ack()
        except FencedError as error:
            tell_refused(message, error)

    def _give_back(self, message: Message, pause_s: float) -> None:
        with contextlib.suppress(FencedError):
            self._runtime.give_back(message, pause_s)


class NotBegunError(Exception):
    """There was no connection to begin a transaction on: the handler was not called, so it is no failure of it."""


class PartlyFailedError(Exception):
    """A transactional batch handler has told of failures: its one transaction is rolled back."""

    def __init__(self, results: Sequence[tuple[Message, BaseException | None]]) -> None:
        super().__init__("some messages of the batch have failed")
        self.results = results


def check_ran(returned: object) -> None:
    """Look at what a handler has returned, unless it is None.

    Raises:
        HandlerError: It stands for work that nobody will do: a coroutine or a generator.
    """
    if isinstance(returned, Coroutine | Generator | AsyncGenerator):
        if isinstance(returned, Coroutine):
            returned.close()
        raise HandlerError(
            f"the handler has returned a {type(returned).__name__}, of which nothing has run; wanted it to do its work"
        )


def check_results(batch: Sequence[Message], returned: object, options: Options) -> None:
    """Look at what a transactional handler returns, before its transaction ends.

    Raises:
        PartlyFailedError: It tells of failures: what it has done for these messages must not be committed, and the rest is
            in the same transaction.
        HandlerError: As check_ran.
    """
    if returned is not None:
        check_ran(returned)
    if options.batch_size > 1:
        results = results_of(batch, returned)
        if any(error is not None for _, error in results):
            raise PartlyFailedError(results)


def check_acked(batch: Sequence[Message]) -> None:
    """Look at what a transactional handler has left.

    Raises:
        HandlerError: It has rolled its transaction back (psycopg.Rollback), and so its acks.
    """
    runs = [message.delivery for message in batch if message.delivery is not None]
    if any(not delivery.answered and not delivery.owner.lost for delivery in runs):
        raise HandlerError("the handler has rolled its transaction back, and the ack with it")
