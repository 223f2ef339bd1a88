"""The explicit consumer and the workers of subscriptions, both on a Runtime."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from coordinator.consumer.runtime import Runtime
from coordinator.core.loop import Subscription
from coordinator.errors import ConfigError, FencedError, HandlerError
from coordinator.model import BYTES_CONTENT, Message
from coordinator.observe import events

log = logging.getLogger("coordinator")

Decode = Callable[[bytes], Any]
Handler = Callable[[Message], object]
Start = str | datetime


def check_start(start: Start) -> tuple[str, datetime | None]:
    """Return p_from and p_from_time of join_group.

    Raises:
        ConfigError: If it is neither earliest, latest, nor a time with a zone.
    """
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise ConfigError(
                f"start: found {start!r}, which has no time zone; wanted earliest, latest or a time with one"
            )
        return "time", start
    if start not in ("earliest", "latest"):
        raise ConfigError(f"start: found {start!r}; wanted earliest, latest or a datetime with a time zone")
    return start, None


class Settling:
    """What messages call: passes on to the runtime, and decodes."""

    def __init__(self, runtime: Runtime, decode: Decode) -> None:
        self._runtime = runtime
        self._decode = decode
        self.ack = runtime.ack
        self.nack = runtime.nack
        self.extend = runtime.extend

    def decode(self, message: Message) -> Any:
        """Decode a payload; bytes stay bytes."""
        if message.content_type == BYTES_CONTENT:
            return message.payload
        try:
            return self._decode(message.payload)
        except Exception as error:
            raise HandlerError(
                f"{message.topic}/{message.partition}@{message.offset}: the payload is not what the codec takes: {error}"
            ) from error


class Consumer:
    """Messages of a group, one at a time or in batches; for one thread.

    Within a partition the next message is handed over when the one before is settled. Use it as a context manager: leaving
    it writes what is settled, gives back what is not, and leaves the group.
    """

    def __init__(
        self, runtime: Runtime, topics: Sequence[str], group: str, start: Start, decode: Decode, *, auto_ack: bool
    ) -> None:
        start_name, start_time = check_start(start)
        self._runtime = runtime
        self._join = (group, tuple(topics), start_name, start_time)
        self._settling = Settling(runtime, decode)
        self._auto_ack = auto_ack
        self._pending: list[Message] = []
        self._subscriptions: list[Subscription] = []
        self._started = False
        self._closed = False

    @property
    def member_id(self) -> str:
        """The id under which this consumer is a member now; a new one after it was fenced."""
        return str(self._runtime.id)

    def start(self) -> Self:
        """Join the group; done by `with`, by iterating and by `poll`.

        Raises:
            NotFoundError: No such topic.
            UnavailableError: No server.
        """
        if not self._started:
            self._runtime.start([self._join], self._settling)
            self._subscriptions = list(self._runtime.engine.subscriptions.values())
            self._started = True
        return self

    def poll(self, max_messages: int = 1, timeout_s: float | None = None) -> list[Message]:
        """Wait for messages and return up to `max_messages`; empty after the timeout, or once closed.

        With automatic acks, what the call before returned is settled by this one.
        """
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
        while not self._closed:
            yield from self.poll(1)

    def batches(self, max_messages: int = 500, timeout_s: float | None = None) -> Iterator[list[Message]]:
        """Yield lists of up to `max_messages`; after `timeout_s` without any, an empty one."""
        while not self._closed:
            batch = self.poll(max_messages, timeout_s)
            if batch or timeout_s is not None:
                yield batch

    def commit(self) -> None:
        """Return when everything settled so far is durable.

        Raises:
            StaleEpochError: Some of it belongs to claims that were lost meanwhile.
            UnavailableError: Not within commit_timeout_s.
        """
        if self._started:
            self._runtime.commit()

    def at_end(self, timeout_s: float = 5.0) -> bool:
        """Tell whether this member has read and settled everything that there is right now in what it owns."""
        self.start()
        if self._auto_ack:
            self._ack_pending()
        return self._runtime.wait_idle(timeout_s)

    def close(self) -> None:
        """Write what is settled, give back the rest at once, leave the group. Harmless when repeated."""
        if self._closed:
            return
        self._closed = True
        if self._started:
            self._runtime.stop(self._runtime.settings.commit_timeout_s)

    def _ack_pending(self) -> None:
        pending, self._pending = self._pending, []
        for message in pending:
            try:
                message.ack()
            except FencedError as error:
                log.warning(events.ACK_REFUSED, extra={"error": str(error)})

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # What the body was working on when it raised is not done.
        if kind is None and self._auto_ack and not self._closed:
            self._ack_pending()
        self.close()


@dataclass(frozen=True, slots=True)
class Registration:
    """One @subscribe."""

    handler: Handler
    topics: tuple[str, ...]
    group: str
    start: Start


class Workers:
    """Runs the handlers of subscriptions, each in a thread of its own, on one runtime."""

    def __init__(self, runtime: Runtime, registrations: Sequence[Registration], decode: Decode) -> None:
        self._runtime = runtime
        self._registrations = registrations
        self._settling = Settling(runtime, decode)
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self.left_count = 0

    def start(self) -> None:
        """Join all groups, then start the handlers' threads; raises as Consumer.start."""
        joins = [(r.group, r.topics, *check_start(r.start)) for r in self._registrations]
        self._runtime.start(joins, self._settling)
        for registration in self._registrations:
            mine = [
                subscription
                for subscription in self._runtime.engine.subscriptions.values()
                if subscription.group == registration.group and subscription.topic in registration.topics
            ]
            name = f"coordinator-handler-{registration.group}"
            thread = threading.Thread(target=self._work, args=(registration.handler, mine), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> bool:
        """Let running handlers finish within the drain timeout, write, release, leave.

        Returns:
            False if a handler had to be left behind, or not everything could be released; what it had is given back.
        """
        self._stopping.set()
        deadline_s = time.monotonic() + self._runtime.settings.drain_timeout_s
        with self._runtime.changed:
            self._runtime.engine.drain()
            self._runtime.changed.notify_all()
        for thread in self._threads:
            thread.join(max(deadline_s - time.monotonic(), 0.0))
        self.left_count = sum(thread.is_alive() for thread in self._threads)
        released = self._runtime.stop(self._runtime.settings.commit_timeout_s)
        return released and not self.left_count

    def _work(self, handler: Handler, subscriptions: Sequence[Subscription]) -> None:
        while not self._stopping.is_set() and self._runtime.failure is None:
            for message in self._runtime.take(subscriptions, 1, 1.0):
                try:
                    handler(message)
                except Exception:
                    # Not acked: it is delivered again when its deadline has passed.
                    log.exception(events.HANDLER_FAILED, extra=_fields(message))
                else:
                    self._ack(message)

    def _ack(self, message: Message) -> None:
        try:
            message.ack()
        except FencedError as error:
            log.warning(events.ACK_REFUSED, extra={**_fields(message), "error": str(error)})


def _fields(message: Message) -> dict[str, object]:
    return {
        "group": message.group,
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "attempt": message.attempt,
    }
