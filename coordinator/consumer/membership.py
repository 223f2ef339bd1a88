"""Joining groups, planning who owns what, and what a plan means for this coordinator; the same for both shells, no I/O."""

import os
import socket
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from uuid import UUID

from coordinator.consumer.options import Options
from coordinator.consumer.telling import partition_fields
from coordinator.core.assignment import plan
from coordinator.core.loop import Engine
from coordinator.core.partition import Partition
from coordinator.core.sessions import Sessions
from coordinator.core.subscription import Subscription
from coordinator.errors import DeletedError, DeniedError, UnavailableError
from coordinator.model import Blocker, Claim, GroupState, Joined, PartitionKey, Settler, StuckClaim
from coordinator.observe import events
from coordinator.observe.logs import logger
from coordinator.protocol import groups
from coordinator.protocol.statement import Flow, call
from coordinator.settings import Settings

log = logger()

# Joins one after the other put a plan off by at most so many times the pause that is waited for.
_LONGEST_DEBOUNCE = 5.0
# Claims that can't be had for so long are looked into, and told again after that.
_STUCK_S = 3.0
_TOLD_S = 30.0
# A plan that could not be stored is tried again after that.
_SHORTEST_LOOK_S = 0.1


@dataclass(slots=True)
class Moves:
    """wanted: to be claimed now. surplus: held, and meant for somebody else. lost: held, and owned by somebody else.

    stray: some of what is wanted is wanted only to be handed over.
    paused: held or not, to stand still.
    settled: the plan in force is of the newest membership, and everything it gives to this coordinator is held.
    """

    wanted: list[PartitionKey] = field(default_factory=list)
    surplus: list[PartitionKey] = field(default_factory=list)
    lost: list[PartitionKey] = field(default_factory=list)
    paused: set[PartitionKey] = field(default_factory=set)
    settled: bool = True
    stray: bool = False

    def complete(self, claims: Sequence[Claim]) -> bool:
        """Tell whether everything that the plan gives to this coordinator is held, now that these were taken."""
        all_taken = len(claims) == len(self.wanted) and not self.surplus and bool(claims)
        return self.settled or (all_taken and not self.stray)


def entering(
    me: UUID,
    client_id: str,
    static_id: str | None,
    settings: Settings,
    options: Sequence[Options],
    known: Collection[Subscription] = (),
) -> Flow[list[tuple[Options, Joined]]]:
    """Register and join every group; harmless when it is repeated after it was cut off half-way.

    Args:
        known: What was joined before. Then nothing is made: a group that somebody has deleted meanwhile stays deleted.
    """
    # What an earlier try has left, which registering again would run into.
    try:
        yield from call(groups.leave(me))
    except DeniedError as error:
        # The first function of a consumer's that is called; its name would say nothing.
        raise DeniedError(
            f"this role may not consume: {error}",
            detail=error.detail,
            hint="The owner of the schema can allow it: coordinator db grants --role consumer --to ROLE --execute",
        ) from error
    yield from call(
        groups.register(
            me,
            client_id,
            socket.gethostname(),
            os.getpid(),
            settings.lease_s,
            static_id,
            settings.static_grace_s,
            [option.group for option in options],
        )
    )
    joined: list[tuple[Options, Joined]] = []
    for option in options:
        before = [each for each in known if option.reads(each)]
        if not known:
            answer = yield from call(groups.join_group(me, option.group, option.topics, *option.start_from()))
        else:
            left = {each.topic: each.topic_id for each in before if each.deleted is None}
            if not left:
                continue
            answer = yield from call(groups.rejoin_group(me, option.group, before[0].group_id, left))
        joined.append((option, answer))
        if answer.topics:
            log.info(events.MEMBER_JOINED, extra={"group": option.group, "member": str(me)})
    return joined


def enter(engine: Engine, joined: Sequence[tuple[Options, Joined]], settler: Settler) -> set[str]:
    """Tell the engine of the groups that were joined, and of what is gone; returns the channels of their topics."""
    for options, answer in joined:
        there = {topic.topic_id for topic in answer.topics}
        for subscription in engine.subscriptions.values():
            if options.reads(subscription) and subscription.topic_id not in there:
                _end(engine, subscription, group_is_there=answer.group_id is not None)
        for topic in answer.topics:
            if answer.group_id is not None and (answer.group_id, topic.topic_id) not in engine.subscriptions:
                engine.subscribe(options.subscription(answer.group_id, topic, settler))
    return {topic.channel for _, answer in joined for topic in answer.topics}


def looking(me: UUID, groups_read: Mapping[int, str], observed_s: float, debounce_s: float) -> Flow[list[GroupState]]:
    """Declare dead who is dead, make a plan where nobody has, and return the state of the groups.

    Args:
        groups_read: Names of groups by number.
        debounce_s: See `plan_in_s`.
        observed_s: How long the connection has been up: nobody is judged by what was not seen.
    """
    tell_dead((yield from call(groups.reap(observed_s))))
    states = yield from call(groups.group_state(list(groups_read)))
    stored = False
    for state in states:
        owners = plan_of(state, me, debounce_s)
        if owners is not None and (yield from call(groups.store_plan(state.group_id, state.version, owners))):
            stored = True
            log.info(events.GROUP_PLANNED, extra={"group": groups_read[state.group_id], "version": state.version})
    if stored:
        states = yield from call(groups.group_state(list(groups_read)))
    return states


def watching(sessions: Sessions[UUID], observed_s: float, now_s: float) -> Flow[bool]:
    """Look whose session is gone, and declare dead who was without one for long enough; True if somebody was."""
    lost = sessions.on_look((yield from call(groups.lost_sessions())), now_s)
    dead = (yield from call(groups.reap(observed_s, lost))) if lost else []
    tell_dead(dead)
    return bool(dead)


def tell_dead(dead: Sequence[groups.Dead]) -> None:
    for one in dead:
        log.warning(events.MEMBER_DIED, extra=groups.facts_of(one))


class Stuck:
    """Since when claims could not be had, and when that was last told."""

    __slots__ = ("_next_s", "_since_s")

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._next_s = float("-inf")

    def due(self, states: Sequence[GroupState], found: Moves, claims: Sequence[Claim], now_s: float) -> bool:
        """Tell whether to look who holds claims: some that should have been had for a while were not, or owners not judged."""
        overdue = any(claim.overdue for state in states for claim in state.claims)
        if not overdue and len(claims) >= len(found.wanted):
            self._since_s = None
            return False
        if self._since_s is None:
            self._since_s = now_s
        return now_s >= max(self._since_s + _STUCK_S, self._next_s)

    def on_found(
        self, stuck: Sequence[StuckClaim], found: Sequence[Blocker], ended: Sequence[int], now_s: float
    ) -> None:
        """Log who holds the first of the stuck claims; `ended`: the pids of those whose sessions were ended."""
        first = stuck[0]
        place = {
            "group": first.group,
            "topic": first.topic,
            "partition": first.key.partition,
            "owner": str(first.owner),
            "claims": len(stuck),
        }
        for blocker in found:
            log.warning(events.CLAIM_BLOCKED, extra={**place, **asdict(blocker)})
        if not found:
            log.warning(events.CLAIM_BLOCKED, extra=place)
        if ended:
            log.warning(events.BLOCKER_ENDED, extra={**place, "pids": list(ended)})
        # Who was ended is gone, and there may be more; who was not need not be named all the time.
        self._next_s = now_s if ended else now_s + _TOLD_S


def look_again_s(states: Sequence[GroupState], me: UUID, debounce_s: float) -> float:
    """When a plan that waits for company is due; infinite if none waits that this coordinator could make."""
    waits_s = [plan_in_s(state, debounce_s) for state in states if me in state.members]
    return max(min(waits_s, default=float("inf")), _SHORTEST_LOOK_S)


def process_count(states: Sequence[GroupState]) -> int:
    """How many processes the members of these groups are."""
    return len({member for state in states for member in state.members})


def move(engine: Engine, found: "Moves", claims: Sequence[Claim], now_s: float) -> list[Partition]:
    """Bring the engine in line with the plans, and with the claims that were taken; returns what was lost."""
    engine.stand_still(frozenset(found.paused))
    lost = engine.drop(found.lost)
    engine.revoke(found.surplus)
    for claim in claims:
        partition = engine.on_claimed(claim, now_s)
        log.info(events.PARTITION_ASSIGNED, extra={**partition_fields(partition), "takeover": claim.takeover})
        if claim.forced:
            log.warning(events.PARTITION_FORCED, extra=partition_fields(partition))
    # A release of ours that this look saw before the work loop had its answer is no loss.
    return [partition for partition in lost if not partition.revoking]


def end_deleted(engine: Engine, states: Sequence[GroupState]) -> None:
    """End what reads a group or topic that was deleted: it must not just stand still, nor take the others along."""
    group_ids_seen = {state.group_id for state in states}
    there = {(state.group_id, claim.topic_id) for state in states for claim in state.claims}
    for key, subscription in engine.subscriptions.items():
        if key not in there:
            _end(engine, subscription, group_is_there=subscription.group_id in group_ids_seen)


def _end(engine: Engine, subscription: Subscription, *, group_is_there: bool) -> None:
    if subscription.deleted is not None:
        return
    group, topic = subscription.group, subscription.topic
    if group_is_there:
        why = DeletedError(
            f"topic {topic!r}, which group {group!r} reads, was deleted",
            hint="Read the other topics without it; or make the topic again, and start the process again.",
        )
    else:
        why = DeletedError(
            f"group {group!r}, which reads {topic!r}, was deleted",
            hint="If it is not needed any more, take its subscription out. A process that is started again makes it anew, "
            "and reads from where a new group starts.",
        )
    log.error(
        events.TOPIC_DELETED if group_is_there else events.GROUP_DELETED,
        extra={"group": group, "topic": topic, "hint": why.hint},
    )
    engine.end(subscription, why)


def group_ids(engine: Engine) -> list[int]:
    return sorted(group_names(engine))


def group_names(engine: Engine) -> dict[int, str]:
    """The names of the groups that are read, by number."""
    return {each.group_id: each.group for each in engine.subscriptions.values() if each.deleted is None}


def plan_in_s(state: GroupState, debounce_s: float) -> float:
    """How long the membership's plan has to wait, so that members that start together get one; infinite if there is one.

    Only joins are waited for, and not for ever; and for none where a member has gone, whose partitions must not lie about.
    """
    if state.planned_version >= state.version:
        return float("inf")
    there = {None, *state.members, *state.draining}
    if state.unplanned_s is None or any(claim.target not in there for claim in state.claims):
        return 0.0
    return max(min(debounce_s - state.joined_s, _LONGEST_DEBOUNCE * debounce_s - state.unplanned_s), 0.0)


def plan_of(state: GroupState, me: UUID, debounce_s: float = 0.0) -> list[tuple[tuple[int, int], UUID]] | None:
    """Return who should own what, if the membership waits for a plan and this coordinator is one of the members."""
    if plan_in_s(state, debounce_s) > 0.0 or me not in state.members:
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


def moves(
    states: Sequence[GroupState],
    me: UUID,
    held: Collection[PartitionKey],
    hand_over_s: float = float("inf"),
    *,
    held_before: Collection[PartitionKey],
) -> Moves:
    """Compare what is held with what the plans say.

    What has been meant for this coordinator for `hand_over_s` is wanted, whoever owns it. Who is drained has too much of all.

    A claim that the table gives to this coordinator and that it does not hold (it was dropped after a doubt) is claimed
    again, under a new epoch; also one that is meant for somebody else by now, as only its owner can hand it over. What was
    `held_before` the look at the groups and is not held any more was released meanwhile.
    """
    found = Moves()
    seen: set[PartitionKey] = set()
    for state in states:
        if state.planned_version < state.version:
            found.settled = False
        for claim in state.claims:
            key = PartitionKey(state.group_id, claim.topic_id, claim.partition)
            seen.add(key)
            if claim.paused:
                found.paused.add(key)
            mine = claim.owner == me
            if key in held:
                if not mine:
                    found.lost.append(key)
                elif me in state.draining or (claim.target is not None and claim.target != me):
                    found.surplus.append(key)
            elif claim.target == me:
                found.settled = False
                if claim.free or mine or claim.waiting_s >= hand_over_s:
                    found.wanted.append(key)
            elif mine and key not in held_before:
                found.settled, found.stray = False, True
                found.wanted.append(key)
    found.lost.extend(key for key in held if key not in seen)
    return found


def superseded() -> UnavailableError:
    """What a loop raises whose connection sees a history of the database that this coordinator has left."""
    return UnavailableError("the other connection has found another history of the database: this one is left")
