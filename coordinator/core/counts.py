"""What one subscription has counted since its process started: plain integers, which only grow.

They are written where the engine writes anyway, under its lock, once per batch where that is possible, and are read without
it: who reads in the middle of a change sees the state before or after it.
"""

from dataclasses import dataclass, field

from coordinator.model import Facts


@dataclass(slots=True)
class Counts:
    """Hand-overs and what became of them.

    Attributes:
        delivered: Hand-overs, but for those that the windows of held partitions count: that costs nothing.
        redelivered: Those of them that were not the first of their message, by what the one before has come to.
        acked: Acks on their way into the database.
        retried: Failures after which the message is handed over again.
        dead_lettered: Dead letters that were written, by reason.
        stale: Settling calls that were refused, because the claim was lost.
    """

    delivered: int = 0
    acked: int = 0
    retried: int = 0
    stale: int = 0
    redelivered: dict[str, int] = field(default_factory=dict)
    dead_lettered: dict[str, int] = field(default_factory=dict)

    def redeliver(self, reason: str) -> None:
        self.redelivered[reason] = self.redelivered.get(reason, 0) + 1

    def bury(self, reason: str) -> None:
        self.dead_lettered[reason] = self.dead_lettered.get(reason, 0) + 1


def why_again(facts: Facts) -> str | None:
    """Return why a message is handed over again; None for the first time, as behind its key or alone."""
    if facts.late:
        return "deadline"
    if facts.crashes:
        return "crash"
    if facts.fails:
        return "failure"
    return "replay" if facts.replays else None
