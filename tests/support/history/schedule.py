"""Faults and when they come: made from a seed alone, so that a printed schedule can be run again."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# How often each comes, compared with the others.
WEIGHTS = {
    "kill": 5,
    "freeze": 4,
    "stop": 2,
    "terminate": 4,
    "restart": 2,
    "black hole": 2,
    "cut": 3,
    "kill publisher": 1,
}


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens at a second after the start.

    Attributes:
        kind: "kill" (SIGKILL, and another process comes), "freeze" (SIGSTOP for a while), "stop" (SIGTERM, and another comes),
            "terminate" (pg_terminate_backend of some of a process's connections), "restart" (of the server, immediate),
            "shut down" (and start again after a while), "black hole" (bytes of the process behind the proxy disappear),
            "cut" (its connections are cut when the server has answered COMMIT), "kill publisher"; "promote" (the standby is cut off
            from the primary, which goes on for a while, and is killed then; once in a run, and never at random).
        slot: Which process; for the server none.
        for_s: How long it lasts, where it lasts.
    """

    at_s: float
    kind: str
    slot: int = 0
    for_s: float = 0.0


def make(
    seed: int,
    duration_s: float,
    slots: int,
    *,
    lease_s: float,
    pause_s: float = 3.0,
    kinds: Sequence[str] = tuple(WEIGHTS),
    spared: int | None = None,
) -> list[Fault]:
    """Return a random schedule.

    Args:
        pause_s: Between two faults, on average.
        spared: A slot whose process lives through it all, so that its memory can be looked at.
    """
    chance = Random(seed)
    faults: list[Fault] = []
    at_s = pause_s
    # Each kind once before anything comes twice: a short run sees them all.
    queue = chance.sample(list(kinds), len(kinds))
    while at_s < duration_s:
        kind = queue.pop() if queue else chance.choices(list(kinds), [WEIGHTS[kind] for kind in kinds])[0]
        mortal = [slot for slot in range(slots) if slot != spared]
        slot = chance.choice(mortal if kind in ("kill", "stop") else range(slots))
        for_s = 0.0
        if kind == "freeze":
            # Half of them are replaced meanwhile and come back as zombies.
            for_s = round(chance.choice((0.3 * lease_s, lease_s + 3.0)), 1)
        elif kind in ("black hole", "cut"):
            for_s = round(chance.uniform(0.5, 3.0), 1)
        faults.append(Fault(round(at_s, 2), kind, slot, for_s))
        at_s += chance.uniform(0.5, 1.5) * pause_s
    return faults


def outage(*, restarts: int = 5, away_s: float = 180.0) -> list[Fault]:
    """Return the schedule in which the server restarts and stays away, and nobody dies."""
    faults = [Fault(5.0 + 6.0 * number, "restart") for number in range(restarts)]
    return [*faults, Fault(faults[-1].at_s + 8.0, "shut down", for_s=away_s)]


def to_text(faults: Sequence[Fault]) -> str:
    """One fault a line, as JSON."""
    return "\n".join(json.dumps(asdict(fault)) for fault in faults) + "\n"


def from_text(text: str) -> list[Fault]:
    return [Fault(**json.loads(line)) for line in text.splitlines() if line.strip()]
