"""When what was settled is durable: the goals that `commit` and `ack(wait=True)` wait for; the same for both shells."""

from collections.abc import Sequence
from typing import TypeAlias

from coordinator.core.loop import Engine
from coordinator.core.losses import Caller, Losses
from coordinator.core.partition import Partition
from coordinator.errors import CoordinatorError, NotStoredError, StaleEpochError, UnavailableError

# How many settlements of a partition are to be durable; an exchange that was under way when it was set does not count for it.
Goals: TypeAlias = Sequence[tuple[Partition, int]]


def all_unsaved(engine: Engine) -> Goals:
    """Return what is not durable yet."""
    engine.take_in()
    return [(p, p.settled_count) for p in engine.partitions.values() if p.holds_unsaved]


def reached(goals: Goals) -> bool:
    """Everything is durable, or will never be."""
    return all(partition.saved_count >= count or partition.lost for partition, count in goals)


def check_ack(engine: Engine, partition: Partition, count: int) -> None:
    """Tell who waited for one ack that its claim was lost before.

    Raises:
        StaleEpochError: It was.
    """
    if partition.lost and partition.saved_count < count:
        if partition.settled_count - partition.saved_count <= 1:
            # Nobody else's was cut off with it.
            engine.losses.discard(partition.source)
        losses = Losses()
        losses.add(partition.source)
        raise _stale(losses, [partition])


def check_committed(engine: Engine, goals: Goals, caller: Caller | None = None) -> None:
    """Tell a `commit` of what will never be durable, or is not yet although everything was sent.

    A loss is told to one commit, and besides to every caller's own next one who had settled something of that claim.

    Raises:
        StaleEpochError: Claims were lost before.
        NotStoredError: Dead letters could not be stored.
    """
    losses, engine.losses = engine.losses, Losses()
    if caller is not None:
        losses.join(caller.take())
    lost = [partition for partition, count in goals if partition.lost and partition.saved_count < count]
    losses.join(lost)
    if losses.count:
        raise _stale(losses, lost)
    refused = not_stored(engine)
    if refused is not None:
        raise refused


def _stale(losses: Losses, lost: Sequence[Partition]) -> StaleEpochError:
    gone = [p.subscription.deleted for p in lost if p.subscription.deleted is not None]
    why = f"{gone[0]}: " if gone else "and owned by somebody else: "
    return StaleEpochError(f"lost before the ack was committed, {why}{losses}", held=losses.named[-1].epoch)


def not_stored(engine: Engine) -> NotStoredError | None:
    """Return what is to be told of dead letters that the database does not take."""
    refused = [
        (f"{p.source.topic}/{p.key.partition}@{offset}", failing.refused)
        for p in engine.partitions.values()
        for offset, failing in p.failing.items()
        if failing.refused is not None
    ]
    if not refused:
        return None
    place, why = refused[0]
    return NotStoredError(f"{len(refused)} dead letters could not be stored, such as {place}: {why}")


def left_unsaved(engine: Engine, limit_s: float) -> CoordinatorError | None:
    """What a `close` has to tell: something that was settled is not durable, and will come again."""
    engine.take_in()
    refused = not_stored(engine)
    if refused is not None:
        return refused
    if any(p.settled_count > p.saved_count for p in engine.partitions.values()):
        return UnavailableError(
            f"not known to be committed within {limit_s:g} s; what was settled last may be delivered again"
        )
    return None


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
