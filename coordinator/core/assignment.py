"""Who should own which partition: sticky and balanced."""

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise
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
        An owner for every partition that somebody can read. The loads are as even as the topics that members read allow:
        nobody could be given less by giving somebody with at least two fewer more. Where all members read the same topics
        that means that counts differ by at most 1, and then no partition moves that need not. A plan made from this one,
        for the same members, moves nothing.

    Cost: O(p m) to place, then O(p + m log m) a move where members read the same; there are as many as the balance needs.
    Source: the sticky idea of KIP-54, without its memory of earlier plans; evenness by cost-reducing paths (Harvey and
    others, 2006).
    """
    owned: dict[M, list[tuple[int, int]]] = {member: [] for member in members}
    free: list[tuple[int, int]] = []
    for partition in partitions:
        owner = previous.get(partition)
        if owner is not None and owner in members and partition[0] in members[owner]:
            owned[owner].append(partition)
        else:
            free.append(partition)
    for partition in free:
        readers = [member for member in members if partition[0] in members[member]]
        if readers:
            owned[min(readers, key=lambda member: len(owned[member]))].append(partition)
    while path := _lightening_path(members, owned):
        for giver, taker in pairwise(path):
            place = max(place for place, (topic, _) in enumerate(owned[giver]) if topic in members[taker])
            owned[taker].append(owned[giver].pop(place))
    return {partition: member for member, mine in owned.items() for partition in mine}


def _lightening_path(members: Mapping[M, frozenset[int]], owned: Mapping[M, Sequence[tuple[int, int]]]) -> list[M]:
    """Find members along whom one partition each is passed on, from one with most to one with at least two fewer.

    The most loaded member that can be helped comes first: helping a less loaded one before it could move a partition that
    has to move on. A path is longer than one step only where members read different topics.

    Returns:
        The shortest path to the least loaded member that can be reached, the first in order of those; empty if none.
    """
    for giver in sorted(members, key=lambda member: -len(owned[member])):
        before: dict[M, M | None] = {giver: None}
        reached = deque([giver])
        apart = [member for member in members if member != giver]
        while reached and apart:
            member = reached.popleft()
            topics = {topic for topic, _ in owned[member]}
            nearer = [other for other in apart if not topics.isdisjoint(members[other])]
            before.update(dict.fromkeys(nearer, member))
            reached.extend(nearer)
            apart = [other for other in apart if other not in before]
        taker: M | None = min(before, key=lambda member: len(owned[member]))
        if taker is None or len(owned[taker]) + 2 > len(owned[giver]):
            continue
        path: list[M] = []
        while taker is not None:
            path.append(taker)
            taker = before[taker]
        return path[::-1]
    return []
