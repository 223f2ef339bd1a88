"""One group's reading of one topic in this process, and how it wants to be served."""

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from coordinator.core.counts import Counts
from coordinator.core.retry import RetryPolicy
from coordinator.errors import DeletedError
from coordinator.model import Settler

if TYPE_CHECKING:
    from coordinator.core.partition import Partition

ORDERINGS = ("partition", "key", "none")


@dataclass(slots=True)
class Rate:
    """At most `per_s` starts per second: a bucket that holds one second's worth."""

    per_s: float
    _tokens: float = 0.0
    _at_s: float | None = None

    def room(self, now_s: float) -> int:
        """How many messages may start now."""
        if self._at_s is None:
            self._tokens = 1.0
        else:
            self._tokens = min(self._tokens + (now_s - self._at_s) * self.per_s, max(self.per_s, 1.0))
        self._at_s = now_s
        return int(self._tokens)

    def on_started(self, count: int) -> None:
        self._tokens -= count

    def next_s(self, now_s: float) -> float:
        """When the next message may start."""
        return now_s + max(1.0 - self._tokens, 0.0) / self.per_s


@dataclass(slots=True, eq=False)
class Subscription:
    """`runnable` holds the partitions from which a message may start, in the order in which they get their turn.

    Attributes:
        ordering: partition, key or none.
        policy: What a failure means.
        transactional: Handlers ack in their own transactions.
        max_processing_s: How long a running handler's deadline is moved on by itself.
        rate: A bound on starts per second.
        paused: Nothing starts.
        deleted: Its group or topic is gone, and nothing is read any more.
    """

    group: str
    group_id: int
    topic: str
    topic_id: int
    settler: Settler | None
    ordering: str = "key"
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    transactional: bool = False
    max_processing_s: float = 3600.0
    rate: Rate | None = None
    paused: bool = False
    deleted: DeletedError | None = None
    runnable: "deque[Partition]" = field(default_factory=deque)
    counts: Counts = field(default_factory=Counts)
    # Asked several times per message, so they are not computed each time.
    by_key: bool = field(init=False)
    one_at_a_time: bool = field(init=False)

    def __post_init__(self) -> None:
        self.by_key = self.ordering == "key"
        self.one_at_a_time = self.ordering == "partition"
