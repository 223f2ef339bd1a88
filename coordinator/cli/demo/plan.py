"""What a run of the demo is made of: names, sizes, and what the parent tells its processes."""

import json
from dataclasses import asdict, dataclass
from typing import Literal

# The demo installs a coordinator of its own and drops it at the next start; it touches no other schema than these two.
SCHEMA = "coordinator_demo"
SERVICE_SCHEMA = "coordinator_demo_service"

TOPIC = "flights"
PARTITION_COUNT = 8
AUDIT = "audit"
DELAYS = "delays"
GROUPS = (AUDIT, DELAYS)

# Shorter than the product's defaults (10, 3 and 2 s), because the demo waits until a dead process's lease is over.
LEASE_S = 3.0
HEARTBEAT_S = 0.5
MEMBERSHIP_POLL_S = 0.5

# The group "delays": handlers at the same time in each process, and after how many deaths of its process a message is dead.
CONCURRENCY = 3
MAX_CRASHES = 3
# How far a partition of "delays" is read ahead; the default is up to 500. What is read ahead in a process that dies is
# charged with its death, and what was charged twice is run alone, one message at a time: correct, and slow to watch.
PREFETCH = 16
# The pause after a death, on which the default backs off from 1 s.
RETRY_S = 0.2

# How many dead letters are given back at the end: the first cancelled flights.
REPLAY_COUNT = 5

PUBLISHER_COUNT = 2
PUBLISH_BATCH = 100
AUDIT_BATCH = 100

Role = Literal["publish", "audit", "delays"]


@dataclass(frozen=True, slots=True)
class Task:
    """What one process is told, as one line of JSON on its standard input.

    Not as arguments: everybody on the machine can read those, and a DSN may hold a password.

    Attributes:
        name: Of the process, such as "delays-1"; its client id at the coordinator.
        share: Which of the publishers it is, counted from 0; for consumers without meaning.
        freeze_after: Consumers of "delays" only: the process stops inside its handler of that many-th message, its
            effect written and nothing committed, until it is killed. None: never.
        poison_nr: Consumers of "delays" only: the flight on which the process kills itself, each time.
        counts_cancelled: Consumers of "delays" only: cancelled flights are counted, not rejected: the mended handler.
    """

    role: Role
    name: str
    dsn: str
    message_count: int
    share: int = 0
    freeze_after: int | None = None
    poison_nr: int | None = None
    counts_cancelled: bool = False

    def to_line(self) -> str:
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def from_line(cls, line: str) -> "Task":
        return cls(**json.loads(line))
