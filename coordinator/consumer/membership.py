"""What a look at the groups' state means for this coordinator; the same for both shells, no I/O."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from coordinator.core.assignment import plan
from coordinator.model import GroupState, PartitionKey


@dataclass(slots=True)
class Moves:
    """wanted: to be claimed now. surplus: held, and meant for somebody else. lost: held, and owned by somebody else.

    settled: the plan in force is of the newest membership, and everything it gives to this coordinator is held.
    """

    wanted: list[PartitionKey] = field(default_factory=list)
    surplus: list[PartitionKey] = field(default_factory=list)
    lost: list[PartitionKey] = field(default_factory=list)
    settled: bool = True


def plan_of(state: GroupState, me: UUID) -> list[tuple[tuple[int, int], UUID]] | None:
    """Return who should own what, if the membership has no plan yet and this coordinator is one of the members."""
    if state.planned_version >= state.version or me not in state.members:
        return None
    # A target that has left before it took over counts for nothing: then the claim stays best where it is.
    previous = {
        (claim.topic_id, claim.partition): claim.target if claim.target in state.members else claim.owner
        for claim in state.claims
    }
    partitions = sorted((claim.topic_id, claim.partition) for claim in state.claims)
    owners = plan(
        dict(sorted(state.members.items())),
        partitions,
        {partition: owner for partition, owner in previous.items() if owner is not None},
    )
    return sorted(owners.items())


def moves(states: Sequence[GroupState], me: UUID, held: Collection[PartitionKey]) -> Moves:
    """Compare what is held with what the plans say.

    A claim that the table gives to this coordinator and that it does not hold (it was dropped after a doubt) is claimed
    again, under a new epoch.
    """
    found = Moves()
    seen: set[PartitionKey] = set()
    for state in states:
        if state.planned_version < state.version:
            found.settled = False
        for claim in state.claims:
            key = PartitionKey(state.group_id, claim.topic_id, claim.partition)
            seen.add(key)
            mine = claim.owner == me
            if key in held:
                if not mine:
                    found.lost.append(key)
                elif claim.target is not None and claim.target != me:
                    found.surplus.append(key)
            elif claim.target == me:
                found.settled = False
                if claim.free or mine:
                    found.wanted.append(key)
    found.lost.extend(key for key in held if key not in seen)
    return found
