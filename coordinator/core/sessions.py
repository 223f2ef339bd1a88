"""Which processes are gone: what one observer has seen of their sessions, over one unbroken connection of its own."""

from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

M = TypeVar("M", bound=Hashable)

# A process that loses its connection has a new one long before that.
SESSION_GRACE_S = 2.0

# Together the processes look about eight times a second, however many they are; each alone at least this often.
_LOOKS_PER_S = 8.0
_LONGEST_PAUSE_S = 2.0


class Sessions(Generic[M]):
    """Sessions without their lock, each with the time since which it was seen so at every look.

    Void with the connection over which they were seen: after a restart or an outage nobody has been missed yet.
    """

    __slots__ = ("_missed_s",)

    def __init__(self) -> None:
        self._missed_s: dict[tuple[M, int], float] = {}

    def on_look(self, lost: Sequence[tuple[M, int]], now_s: float) -> dict[M, int]:
        """Take in who is without a lock now; returns those who have been for long enough, with the pid of the session."""
        self._missed_s = {session: self._missed_s.get(session, now_s) for session in lost}
        return dict(session for session, since_s in self._missed_s.items() if now_s >= since_s + SESSION_GRACE_S)

    def next_look_s(self, process_count: int, now_s: float, jitter: float) -> float:
        """When to look again: sooner where somebody is missed and will have been for long enough.

        Args:
            process_count: How many look, this one included; alone there is nobody to miss.
            jitter: Between 0 and 1; spreads the looks of a fleet.
        """
        pause_s = min(process_count / _LOOKS_PER_S, _LONGEST_PAUSE_S) if process_count > 1 else _LONGEST_PAUSE_S
        next_s = now_s + pause_s * (0.5 + 0.5 * jitter)
        due = [since_s + SESSION_GRACE_S for since_s in self._missed_s.values()]
        return min(next_s, max(min(due), now_s + 0.05)) if due else next_s
