"""What a subscription asks for, checked where it is made; the same for both shells."""

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from coordinator.core.deliveries import Limits
from coordinator.core.retry import MAX_ERROR_CHARS, MAX_TRACEBACK_CHARS, Exponential, Failure, RetryPolicy, clean
from coordinator.core.subscription import ORDERINGS, Rate, Subscription
from coordinator.errors import ConfigError, Reject
from coordinator.model import JoinedTopic, Message, Settler
from coordinator.observe.logs import kind_of
from coordinator.protocol.check import wrong
from coordinator.settings import Settings

Start = str | datetime

_MAX_CONCURRENCY = 1000
_MAX_BATCH = 10_000
# A deadline as close as this leaves no time to wait for a taker.
_SHORT_S = 1.0


@dataclass(frozen=True, slots=True)
class Options:
    """One subscription.

    Attributes:
        topics, group: What is read, and for whom.
        start: Where a group starts that has not read a topic before: earliest, latest, or a time with a zone.
        ordering: "key" (one at a time per key, keys in parallel), "partition" (one at a time, nothing overtakes), "none".
        concurrency: Handlers at the same time.
        max_attempts, max_crashes: Budgets of a message.
        retry: Delays between attempts: seconds as a list, a callable of the attempt, or nothing for doubling from 1 s to 5 min.
        on_error: By class of exception: "retry", "reject", or seconds.
        transactional: The handler gets a connection; its effects and the ack are committed together.
        batch_size: More than 1: the handler gets lists.
        max_rate: Starts per second, at most.
        max_processing_s: How long a running handler's deadline is moved on by itself.
        on_dead_letter: Called with the message's place and the reason once a dead letter is written.
    """

    topics: tuple[str, ...]
    group: str
    start: Start = "earliest"
    ordering: str = "key"
    concurrency: int = 1
    max_attempts: int = 5
    max_crashes: int = 3
    retry: Callable[[int], float] | Sequence[float] | None = None
    on_error: Mapping[type[BaseException], str | float] = field(default_factory=dict)
    transactional: bool = False
    batch_size: int = 1
    max_rate: float | None = None
    max_processing_s: float = 3600.0
    on_dead_letter: Callable[[Mapping[str, Any]], object] | None = None

    def __post_init__(self) -> None:
        if not self.topics or not all(isinstance(name, str) and name for name in self.topics):  # type: ignore[redundant-expr]
            raise ConfigError(f"wanted the names of one or more topics, found {self.topics!r}")
        if not isinstance(self.group, str) or not self.group:  # type: ignore[redundant-expr]
            raise ConfigError(f"group: wanted a name, found {self.group!r}")
        for text in (self.group, *self.topics):
            # What a shell makes of bytes that are no UTF-8: no database has such a name, and no driver can send it.
            if not text.isascii() and text.encode(errors="replace").decode() != text:
                raise ConfigError(f"{text!r} is no name: it has a character without a UTF-8 form")
            if "\0" in text:
                raise ConfigError(f"{text!r} is no name: it holds a NUL")
        if not isinstance(self.ordering, str) or self.ordering not in ORDERINGS:  # type: ignore[redundant-expr]
            raise ConfigError(f"ordering: wanted one of {', '.join(ORDERINGS)}, found {self.ordering!r}")
        for name, value, high in (
            ("concurrency", self.concurrency, _MAX_CONCURRENCY),
            ("batch_size", self.batch_size, _MAX_BATCH),
        ):
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= high:  # type: ignore[redundant-expr]
                raise ConfigError(f"{name}: wanted a whole number from 1 to {high}, found {value!r}")
        if self.max_rate is not None and not (_is_number(self.max_rate) and 0 < self.max_rate < float("inf")):
            raise ConfigError(
                f"max_rate: wanted messages per second above 0, or None for no limit, found {self.max_rate!r}"
            )
        if not (_is_number(self.max_processing_s) and self.max_processing_s >= 0):
            raise ConfigError(f"max_processing_s: wanted seconds of at least 0, found {self.max_processing_s!r}")
        if not isinstance(self.transactional, bool):
            raise ConfigError(f"transactional: wanted True or False, found {self.transactional!r}")
        if self.on_dead_letter is not None and not callable(self.on_dead_letter):
            raise ConfigError(f"on_dead_letter: wanted a function, found {self.on_dead_letter!r}")
        self.start_from()
        self.policy()

    def reads(self, subscription: Subscription) -> bool:
        """Tell whether a subscription is one of this."""
        return subscription.group == self.group and subscription.topic in self.topics

    def start_from(self) -> tuple[str, datetime | None]:
        """Return p_from and p_from_time of join_group.

        Raises:
            ConfigError: If it is neither earliest, latest, nor a time with a zone.
        """
        if isinstance(self.start, datetime):
            if self.start.tzinfo is None:
                raise ConfigError(
                    f"start: found {self.start!r}, which has no time zone; wanted earliest, latest or a time with one"
                )
            return "time", self.start
        if not isinstance(self.start, str) or self.start not in ("earliest", "latest"):  # type: ignore[redundant-expr]
            raise ConfigError(f"start: found {self.start!r}; wanted earliest, latest or a datetime with a time zone")
        return self.start, None

    def policy(self) -> RetryPolicy:
        """Return what a failure means."""
        delays = Exponential() if self.retry is None else self.retry
        return RetryPolicy(self.max_attempts, self.max_crashes, delays, self.on_error)

    def subscription(self, group_id: int, topic: JoinedTopic, settler: Settler) -> Subscription:
        """Return the core's part for one of the topics."""
        return Subscription(
            self.group,
            group_id,
            topic.name,
            topic.topic_id,
            settler,
            ordering=self.ordering,
            policy=self.policy(),
            transactional=self.transactional,
            max_processing_s=self.max_processing_s,
            rate=None if self.max_rate is None else Rate(self.max_rate),
        )


def check_poll(max_messages: object, timeout_s: object) -> None:
    """Raise ConfigError unless a consumer can be asked for that."""
    if not isinstance(max_messages, int) or isinstance(max_messages, bool) or max_messages < 1:
        raise ConfigError(f"max_messages: wanted a whole number of at least 1, found {max_messages!r}")
    if timeout_s is not None and not (_is_number(timeout_s) and timeout_s >= 0):  # type: ignore[operator]
        raise ConfigError(f"timeout_s: wanted seconds of at least 0, or None, found {timeout_s!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def limits_of(settings: Settings) -> Limits:
    """Return the core's part of the settings."""
    return Limits(
        visibility_timeout_s=settings.visibility_timeout_s,
        max_window=settings.prefetch,
        max_window_bytes=settings.prefetch_bytes,
        max_in_flight=settings.max_in_flight,
        max_in_flight_bytes=settings.max_in_flight_bytes,
        max_holes=settings.max_holes,
        max_parked=settings.max_parked,
        linger_s=settings.linger_s,
        poll_max_s=settings.poll_max_s,
    )


def ahead_of(settings: Settings) -> int | None:
    """How many messages a quick taker may hold ahead; None: as many as it likes. One where deadlines are very close."""
    return 1 if settings.visibility_timeout_s < _SHORT_S else None


def handlers_pool_size(options: Sequence[Options], settings: Settings) -> int:
    """How many connections the handlers' transactions may need at the same time."""
    wanted = sum(option.concurrency for option in options if option.transactional)
    return max(wanted, settings.pool_size)


def failure_of(error: BaseException) -> Failure:
    """Return what is kept of an exception."""
    text = "".join(traceback.format_exception(error))
    try:
        told = str(error)
    except Exception:  # noqa: BLE001 - a user's class may fail to tell itself; its message must not take the process along
        told = "(its text cannot be had)"
    return Failure(
        clean(f"{type(error).__name__}: {told}", MAX_ERROR_CHARS), clean(text, MAX_TRACEBACK_CHARS), kind_of(error)
    )


def rejection(reason: str) -> tuple[Reject, Failure]:
    """Return what `Message.reject` means, as an exception and as what is kept of it."""
    if not isinstance(reason, str):
        raise wrong("reason", "a text", reason, typed=True)
    kept = clean(reason, MAX_ERROR_CHARS)
    return Reject(kept), Failure(kept, kind="Reject")


def results_of(batch: Sequence[Message], returned: object) -> list[tuple[Message, BaseException | None]]:
    """Say what became of each message of a batch, from what its handler returned.

    None: all are done. A mapping of messages to None or an exception: as it says; a message left out has failed.
    """
    if returned is None:
        return [(message, None) for message in batch]
    if not isinstance(returned, Mapping):
        wrong = TypeError(f"a batch handler returns None or a mapping of messages, found {type(returned).__name__}")
        return [(message, wrong) for message in batch]
    left_out = LookupError("the batch handler's result says nothing of this message")
    found: list[tuple[Message, BaseException | None]] = []
    for message in batch:
        result = returned.get(message, left_out)
        wrong_result = result is not None and not isinstance(result, BaseException)
        found.append(
            (message, TypeError(f"result {result!r}: wanted None or an exception") if wrong_result else result)
        )
    return found
