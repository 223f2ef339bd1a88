"""Who should own which partition: sticky and balanced."""

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

M = TypeVar("M", bound=Hashable)


def plan(
    members: Mapping[M, frozenset[int]],
    partitions: Sequence[tuple[int, int]],
    previous: Mapping[tuple[int, int], M],
) -> dict[tuple[int, int], M]:
    """Spread partitions over the members that read their topic, moving as few as possible.

    Args:
        members: The topics that each member reads. Iteration order breaks ties, so it must be the same for everybody.
        partitions: (topic, partition), sorted and unique; any count, also fewer than members.
        previous: The plan in force; may name members that have left.

    Returns:
        An owner for every partition that somebody can read. Where all members read the same topics their counts differ by
        at most 1, and no partition moves that need not.

    Cost: O(m p) at worst. Source: the sticky idea of KIP-54, without its memory of earlier plans.
    """
    owned: dict[M, list[tuple[int, int]]] = {member: [] for member in members}
    free: list[tuple[int, int]] = []
    for partition in partitions:
        owner = previous.get(partition)
        if owner is not None and owner in members and partition[0] in members[owner]:
            owned[owner].append(partition)
        else:
            free.append(partition)
    rank = {member: place for place, member in enumerate(members)}
    for partition in free:
        readers = [member for member in members if partition[0] in members[member]]
        if readers:
            owned[min(readers, key=lambda member: (len(owned[member]), rank[member]))].append(partition)
    _level(members, owned, rank)
    return {partition: member for member, mine in owned.items() for partition in mine}


def _level(members: Mapping[M, frozenset[int]], owned: dict[M, list[tuple[int, int]]], rank: Mapping[M, int]) -> None:
    """Move single partitions from who has at least two more to who has fewest of those that read its topic."""
    moved = True
    while moved:
        moved = False
        for giver in sorted(members, key=lambda member: (-len(owned[member]), rank[member])):
            for place in range(len(owned[giver]) - 1, -1, -1):
                topic = owned[giver][place][0]
                readers = [member for member in members if topic in members[member]]
                taker = min(readers, key=lambda member: (len(owned[member]), rank[member]))
                if len(owned[taker]) + 1 < len(owned[giver]):
                    owned[taker].append(owned[giver].pop(place))
                    moved = True
