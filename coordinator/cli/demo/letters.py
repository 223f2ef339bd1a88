"""The dead letters of `delays`: read, and given back."""

import json
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import LiteralString

from coordinator.cli.demo.facts import DeadLetter
from coordinator.cli.demo.plan import DELAYS, TOPIC
from coordinator.cli.demo.tables import Connection

_SELECT: LiteralString = """
select d.partition, d."offset", d.reason, d.error, d.attempts, d.crashes, d.payload
from coordinator_demo.select_dead_letters(%s, %s, p_limit => 1000000) d
"""

_REPLAY: LiteralString = "select r.outcome from coordinator_demo.replay(%s, %s, %s, %s) r"


def read_dead_letters(connection: Connection) -> list[DeadLetter]:
    """Return all of them, by the number of the flight."""
    rows = connection.execute(_SELECT, (DELAYS, TOPIC)).fetchall()
    return sorted((DeadLetter(json.loads(row[6])["nr"], *row[:6]) for row in rows), key=attrgetter("nr"))


def replay(connection: Connection, letters: Iterable[DeadLetter]) -> int:
    """Give these back to the group; returns how many the coordinator has taken."""
    by_partition = attrgetter("partition")
    taken = 0
    for partition, some in groupby(sorted(letters, key=by_partition), by_partition):
        offsets: Sequence[int] = [letter.offset for letter in some]
        rows = connection.execute(_REPLAY, (DELAYS, TOPIC, partition, offsets)).fetchall()
        taken += sum(row[0] == "replayed" for row in rows)
    return taken
