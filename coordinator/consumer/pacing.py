"""How long the shells wait for what; the same for both."""

import random

# Wait at most so long, whatever was said: a clock that jumps must not put a loop to sleep for ever.
LONGEST_WAIT_S = 60.0
# How long a leaving coordinator tries to release claims, when nothing else is left to write.
RELEASE_PATIENCE_S = 3.0
# How long the loops of one that leaves may take, at least: who is cut off there counts as dead, and what it had charged.
LEAVE_PATIENCE_S = 3.0
# What an outage kept from being done is not started again before.
OUTAGE_PAUSE_S = 1.0
# How long our own connections get to notice an outage that a handler has met.
SERVER_LOOK_S = 0.5
# Workers that have nothing in hand end within this once a stop began.
IDLE_ENDS_S = 0.3
# Scheduled messages that one round of a control loop moves, and the pause after a round that failed.
CHORES_LIMIT = 200
CHORES_PAUSE_S = 5.0

# How often the machine's CPU is looked at, where a subscription minds it.
_CPU_LOOK_S = 1.0

_MAX_RESTARTS = 3
_RESTARTS_WITHIN_S = 60.0

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0


def is_hung(busy_since_s: float | None, now_s: float, round_trip_timeout_s: float, connect_timeout_s: float) -> bool:
    """Tell whether a work loop has been at one thing for longer than anything that it does may take."""
    return busy_since_s is not None and now_s - busy_since_s > round_trip_timeout_s + connect_timeout_s


def pause_s(failures: int) -> float:
    """Capped exponential pause with jitter, so that a fleet does not come back in step."""
    longest_s = min(_FIRST_PAUSE_S * 2.0 ** min(failures, 10), _LONGEST_PAUSE_S)
    return longest_s * random.uniform(0.5, 1.0)  # noqa: S311


def jittered_s(interval_s: float) -> float:
    """The next of a series of looks, so that a fleet does not look in step."""
    return interval_s * random.uniform(0.8, 1.0)  # noqa: S311


class Restarts:
    """Tells whether a loop that has ended by an error may begin again: three times within a minute."""

    def __init__(self) -> None:
        self._ended_s: list[float] = []

    def allow(self, now_s: float) -> bool:
        """Count one more end."""
        self._ended_s = [ended_s for ended_s in self._ended_s if now_s - ended_s < _RESTARTS_WITHIN_S]
        self._ended_s.append(now_s)
        return len(self._ended_s) <= _MAX_RESTARTS

    @property
    def count(self) -> int:
        """How many of them were lately."""
        return len(self._ended_s)


class CpuGuard:
    """Tells whether the machine is busier than a percentage; looks once a second at most."""

    __slots__ = ("_above", "_busy", "next_s")

    def __init__(self, above: float | None) -> None:
        """`next_s`: when to look again; never without a percentage."""
        self._above = above
        self._busy = False
        self.next_s = float("inf") if above is None else 0.0

    def busy(self, now_s: float) -> bool:
        """True while the CPU was busier than that, over the time since the last look."""
        if self._above is not None and now_s >= self.next_s:
            import psutil  # noqa: PLC0415 - only for those who ask for it

            self.next_s = now_s + _CPU_LOOK_S
            self._busy = psutil.cpu_percent(None) > self._above
        return self._busy
