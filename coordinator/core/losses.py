"""Claims that were lost before everything that was settled of them was known to be durable: who is to be told of which."""

from collections import deque
from typing import TYPE_CHECKING

from coordinator.model import Source

if TYPE_CHECKING:
    from collections.abc import Iterable

    from coordinator.core.partition import Partition

# Where nobody asks, as under `run`, no more than these are remembered by name.
_NAMED = 20
_MANY = 64


class Losses:
    """How many, and the last of them.

    Attributes:
        count: Also of those that are not named any more.
        named: The newest, oldest first.
    """

    __slots__ = ("count", "named")

    def __init__(self) -> None:
        self.count = 0
        self.named: deque[Source] = deque(maxlen=_NAMED)

    def add(self, source: Source) -> None:
        self.count += 1
        self.named.append(source)

    def discard(self, source: Source) -> None:
        """It was told otherwise."""
        if source in self.named:
            self.count -= 1
            self.named.remove(source)

    def join(self, others: "Losses | Iterable[Partition]") -> None:
        """Add what is not among them."""
        if isinstance(others, Losses):
            fresh = [source for source in others.named if source not in self.named]
            self.count += others.count - len(others.named)
        else:
            fresh = [partition.source for partition in others if partition.source not in self.named]
        for source in fresh:
            self.add(source)

    def __str__(self) -> str:
        names = ", ".join(f"{source.topic}/{source.partition} (epoch {source.epoch})" for source in self.named)
        more = self.count - len(self.named)
        return f"{names} and {more} more" if more else names


class Caller:
    """What one thread or task has settled since its last `commit`, by claim: it is told of its own, whoever was told before.

    Attributes:
        last: What was noted last; to note it again does nothing.
    """

    __slots__ = ("_claims", "_losses", "last")

    def __init__(self) -> None:
        self._claims: set[Partition] = set()
        self.last: Partition | None = None
        self._losses = Losses()

    def note(self, partition: "Partition") -> None:
        """Something of this claim was settled."""
        if partition is self.last:
            return
        self.last = partition
        self._claims.add(partition)
        if len(self._claims) > _MANY:
            # Who never commits must not keep every claim there ever was.
            self._losses.join(claim for claim in self._claims if claim.cut_off)
            self._claims = {claim for claim in self._claims if not claim.lost}

    def take(self) -> Losses:
        """Return what was lost of it, and begin anew."""
        losses = self._losses
        losses.join(claim for claim in self._claims if claim.cut_off)
        self._losses, self._claims, self.last = Losses(), set(), None
        return losses
