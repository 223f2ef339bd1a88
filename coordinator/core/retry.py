"""What a failed attempt means: again after a delay, or a dead letter."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan

from coordinator.errors import ConfigError, Reject, Retry

Delays = Callable[[int], float] | Sequence[float]

MAX_ERROR_CHARS = 2000
MAX_TRACEBACK_CHARS = 6000
MAX_DELAY_S = 366 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Exponential:
    """base_s, doubled with every attempt, up to cap_s; each delay is multiplied by a jitter between low and 1."""

    base_s: float = 1.0
    cap_s: float = 300.0
    jitter_low: float = 0.5

    def __call__(self, attempt: int) -> float:
        return float(min(self.base_s * 2.0 ** min(attempt - 1, 40), self.cap_s))


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Two budgets, and the pauses between attempts.

    Attributes:
        max_attempts: For failures, exceptions and timeouts; a message's own header "max-attempts" outranks it.
        max_crashes: For deaths of the process.
        delays: Seconds before attempt n + 1: Exponential, a list whose last entry repeats, or a callable of n.
        on: By class of exception, the nearest class wins: "retry", "reject", or a delay in seconds.
    """

    max_attempts: int = 5
    max_crashes: int = 3
    delays: Delays = field(default_factory=Exponential)
    on: Mapping[type[BaseException], str | float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("max_attempts", "max_crashes"):
            budget = getattr(self, name)
            if not isinstance(budget, int) or isinstance(budget, bool) or budget < 1:
                raise ConfigError(f"{name}: wanted a whole number of at least 1, found {budget!r}")
        if not callable(self.delays) and not (
            isinstance(self.delays, Sequence) and self.delays and all(map(_is_delay, self.delays))  # type: ignore[redundant-expr]
        ):
            raise ConfigError(
                "retry: wanted a list of one or more seconds of at least 0, or a function of the attempt that returns "
                f"seconds, found {self.delays!r}"
            )
        if not isinstance(self.on, Mapping):
            raise ConfigError(f"on_error: wanted a mapping of classes of exceptions, found {self.on!r}")
        for kind, action in self.on.items():
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):  # type: ignore[redundant-expr]
                raise ConfigError(f"on_error: wanted classes of exceptions, found {kind!r}")
            if not _is_delay(action) and action not in ("retry", "reject"):
                raise ConfigError(
                    f'on_error: wanted "retry", "reject" or seconds for {kind.__name__}, found {action!r}'
                )

    def delay_s(self, attempt: int, jitter: float) -> float:
        """Seconds after failed attempt number `attempt`; `jitter` is uniform between 0 and 1."""
        if isinstance(self.delays, Exponential):
            low = self.delays.jitter_low
            return self.delays(attempt) * (low + (1 - low) * jitter)
        if callable(self.delays):
            try:
                found = float(self.delays(attempt))
            except Exception:  # noqa: BLE001 - a bug in a policy must cost neither its worker nor the message
                found = float("nan")
            return found if not isnan(found) else Exponential()(attempt)
        return float(self.delays[min(attempt, len(self.delays)) - 1])


@dataclass(frozen=True, slots=True)
class Failure:
    """What is kept of a failure: texts, cut, without what PostgreSQL cannot store.

    kind: What may be logged of it; the error itself where that is empty. A text of users may quote the message.
    """

    error: str
    traceback: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Redeliver:
    delay_s: float


@dataclass(frozen=True, slots=True)
class DeadLetter:
    reason: str


def _is_delay(value: object) -> bool:
    # NaN is not at least 0.
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def clean(text: str, max_chars: int) -> str:
    """Make a text storable: NUL and lone surrogates are replaced, the middle of what is too long is cut out."""
    stored = text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode("utf-8")
    if len(stored) <= max_chars:
        return stored
    half = (max_chars - 5) // 2
    return f"{stored[:half]} ... {stored[-half:]}"


def decide(
    policy: RetryPolicy,
    error: BaseException | None,
    attempt: int,
    fails: int,
    own_max_attempts: int | None,
    jitter: float,
) -> Redeliver | DeadLetter:
    """Decide on one failed attempt.

    Args:
        policy: Of the subscription.
        error: What the handler raised; None for a deadline that passed or a plain nack.
        attempt: The attempt's number as the handler was told.
        fails: Failures before this one, without crashes.
        own_max_attempts: The message's own budget.
        jitter: Uniform between 0 and 1.
    """
    action = _action(policy, error)
    if isinstance(error, Reject):
        return DeadLetter("rejected")
    if action == "reject":
        return DeadLetter("rejected")
    if fails + 1 >= (own_max_attempts or policy.max_attempts):
        return DeadLetter("attempts")
    if isinstance(error, Retry) and error.delay_s is not None and not isnan(error.delay_s):
        delay_s = float(error.delay_s)
    elif isinstance(action, int | float):
        delay_s = float(action)
    else:
        delay_s = policy.delay_s(attempt, jitter)
    # What is no time that PostgreSQL can add would be refused with the whole exchange, again and again.
    return Redeliver(min(max(delay_s, 0.0), MAX_DELAY_S))


def _action(policy: RetryPolicy, error: BaseException | None) -> str | float | None:
    if error is None or not policy.on:
        return None
    for kind in type(error).__mro__:
        if kind in policy.on:
            return policy.on[kind]
    return None
