"""The dead letters of `delays`: read, and given back."""

import json
from collections.abc import Iterable
from operator import attrgetter

from coordinator import Coordinator
from coordinator.cli.demo.facts import DeadLetter
from coordinator.cli.demo.plan import DELAYS, TOPIC


def read_dead_letters(app: Coordinator) -> list[DeadLetter]:
    """Return all of them, by the number of the flight."""
    found = [
        DeadLetter(
            nr=json.loads(letter.payload or b"")["nr"],
            partition=letter.partition,
            offset=letter.offset,
            reason=letter.reason,
            error=letter.error or "",
            attempts=letter.attempts,
            crashes=letter.crashes,
        )
        for letter in app.dead_letters(DELAYS).iterate(topic=TOPIC)
    ]
    return sorted(found, key=attrgetter("nr"))


def replay(app: Coordinator, letters: Iterable[DeadLetter]) -> int:
    """Give these back to the group; returns how many the coordinator has taken."""
    mine = app.dead_letters(DELAYS)
    return sum(
        mine.replay(topic=TOPIC, partition=letter.partition, offset=letter.offset).replayed for letter in letters
    )
