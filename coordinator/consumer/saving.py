"""When what was settled is durable: the goals that `commit` and `ack(wait=True)` wait for; the same for both shells."""

from collections.abc import Sequence
from typing import TypeAlias

from coordinator.core.loop import Engine
from coordinator.core.partition import Partition
from coordinator.errors import StaleEpochError, UnavailableError

# How many settlements of a partition are to be durable; an exchange that was under way when it was set does not count for it.
Goals: TypeAlias = Sequence[tuple[Partition, int]]


def all_unsaved(engine: Engine) -> tuple[Goals, Sequence[Partition]]:
    """Return what is not durable yet, and the claims that were lost with unsaved acks since this was last asked."""
    engine.take_in()
    lost, engine.lost_unsaved = engine.lost_unsaved, []
    return [(p, p.settled_count) for p in engine.partitions.values() if p.holds_unsaved], lost


def reached(goals: Goals) -> bool:
    """Everything is durable, or will never be."""
    return all(partition.saved_count >= count or partition.lost for partition, count in goals)


def check_lost(engine: Engine, goals: Goals, lost_before: Sequence[Partition] | None = None) -> None:
    """Tell of claims that were lost before their acks were durable; each is told to one `commit`.

    Args:
        lost_before: By a `commit`, what was lost before it. None: by who waits for one ack, and is told of no other.

    Raises:
        StaleEpochError: There are some.
    """
    before = lost_before or ()
    lost = [*before, *(p for p, count in goals if p.lost and p.saved_count < count and p not in before)]
    if lost:
        told = [p for p in lost if lost_before is not None or p.settled_count - p.saved_count <= 1]
        engine.lost_unsaved = [p for p in engine.lost_unsaved if p not in told]
        gone = [p.subscription.deleted for p in lost if p.subscription.deleted is not None]
        if len(gone) == len(lost):
            raise StaleEpochError(f"lost before the ack was committed: {gone[0]}", held=lost[0].epoch)
        names = ", ".join(f"{p.source.topic}/{p.key.partition} (epoch {p.epoch})" for p in lost)
        raise StaleEpochError(
            f"lost before the ack was committed, and owned by somebody else: {names}", held=lost[0].epoch
        )


def not_in_time(limit_s: float) -> UnavailableError:
    return UnavailableError(
        f"not committed within {limit_s:g} s; the acks are kept and will be written when the database is back, if the claim is "
        "still held then"
    )


def read_to_end(engine: Engine, seen_count: int, *, assigned: bool) -> bool | None:
    """Tell whether everything there is was read and settled; None: not known before another exchange.

    Args:
        seen_count: The engine's exchanges when it was asked; the one under way then says nothing.
        assigned: Everything that the plan gives to this coordinator is held.
    """
    engine.take_in()
    if engine.active:
        return False
    looked = engine.exchange_count >= seen_count + 2
    if assigned and ((looked and engine.idle) or not engine.partitions):
        return True
    return None
