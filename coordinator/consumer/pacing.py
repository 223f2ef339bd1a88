"""How long the shells wait for what; the same for both."""

import random

# Wait at most so long, whatever was said: a clock that jumps must not put a loop to sleep for ever.
LONGEST_WAIT_S = 60.0
# How long a leaving coordinator tries to release claims, when nothing else is left to write.
RELEASE_PATIENCE_S = 3.0
# What an outage kept from being done is not started again before.
OUTAGE_PAUSE_S = 1.0
# Scheduled messages that one round of a control loop moves, and the pause after a round that failed.
CHORES_LIMIT = 200
CHORES_PAUSE_S = 5.0

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0


def pause_s(failures: int) -> float:
    """Capped exponential pause with jitter, so that a fleet does not come back in step."""
    longest_s = min(_FIRST_PAUSE_S * 2.0 ** min(failures, 10), _LONGEST_PAUSE_S)
    return longest_s * random.uniform(0.5, 1.0)  # noqa: S311


def jittered_s(interval_s: float) -> float:
    """The next of a series of looks, so that a fleet does not look in step."""
    return interval_s * random.uniform(0.8, 1.0)  # noqa: S311
