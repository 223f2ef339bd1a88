"""A fleet that plans, claims and hands over in any order comes to rest: all owned, evenly, and then nothing moves."""

import dataclasses
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st
from support.fake_database import FakeDatabase

from coordinator.consumer.membership import look_again_s, moves, plan_in_s, plan_of
from coordinator.errors import MemberDeadError
from coordinator.model import Claim, ClaimState, GroupState, PartitionKey

GROUP = 1
TOPICS = {1: 5, 2: 3}
LEASE_S = 10.0


class Member:
    """What a consumer shell does with the membership, one step at a time, on what it has read at some time before."""

    def __init__(self, database, number, topics=(1, 2)):
        self.database = database
        self.id = UUID(int=number)
        self.held = {}
        self.leaving = set()
        self.state = None
        self.held_before = set()
        database.register(self.id, LEASE_S)
        database.join(self.id, GROUP, topics)

    def look(self):
        self.held_before = set(self.held)
        self.state = self.database.group_state([GROUP])[0]

    def plan(self):
        if self.state is not None:
            owners = plan_of(self.state, self.id)
            if owners is not None:
                self.database.store_plan(GROUP, self.state.version, owners)

    def move(self):
        """Claim what is wanted, stop what is surplus, forget what is lost; returns how many of all those."""
        if self.state is None:
            return 0
        found = moves([self.state], self.id, set(self.held), held_before=self.held_before)
        try:
            claims = self.database.claim(self.id, found.wanted)
        except MemberDeadError:
            claims = []
        for key in found.lost:
            self.held.pop(key, None)
            self.leaving.discard(key)
        self.leaving.update(found.surplus)
        for claim in claims:
            self.held[claim.key] = claim.epoch
            self.leaving.discard(claim.key)
        return len(claims) + len(found.surplus) + len(found.lost)

    def release(self):
        """What was in flight is finished: give back what is to be given back."""
        for key in self.leaving:
            self.database.release(self.id, [(key, self.held.pop(key))])
        self.leaving.clear()

    def leave(self):
        self.leaving = set(self.held)
        self.release()
        self.database.leave(self.id)


class Fleet:
    def __init__(self):
        self.database = FakeDatabase(TOPICS, {GROUP: list(TOPICS)})
        self.members = []
        self._numbers = iter(range(1, 1000))

    def join(self):
        # Ids are random in life: a new member may sort anywhere.
        self.members.append(Member(self.database, next(self._numbers) * 7919 % 1009))

    def die(self, member):
        self.members.remove(member)
        self.database.coordinators[member.id].lease_until_s = float("-inf")

    def act(self, what, place):
        if what == "join":
            if len(self.members) < 10:
                self.join()
            return
        if not self.members:
            return
        member = self.members[place % len(self.members)]
        match what:
            case "die":
                self.die(member)
            case "leave":
                self.members.remove(member)
                member.leave()
            case "reap":
                self.database.reap(LEASE_S)
            case step:
                getattr(member, step)()

    def loads(self):
        return [sum(claim.owner == member.id for claim in self.database.claims.values()) for member in self.members]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["join", "look", "look", "plan", "move", "move", "release", "die", "leave", "reap"]),
        st.integers(0, 9),
    ),
    max_size=60,
)


@settings(deadline=None, max_examples=300)
@given(STEPS, st.randoms(use_true_random=False))
def test_fleet__any_history__comes_to_rest(steps, chance):
    fleet = Fleet()
    for what, place in steps:
        fleet.act(what, place)
    if not fleet.members:
        fleet.join()
    fleet.database.reap(LEASE_S)
    # Four rounds: one plans; the old owners see it and stop; they release; the new ones claim. The order is anybody's.
    for _ in range(4):
        for member in chance.sample(fleet.members, len(fleet.members)):
            member.look()
            member.plan()
            member.look()
            member.move()
        for member in chance.sample(fleet.members, len(fleet.members)):
            member.release()
    owners = {claim.owner for claim in fleet.database.claims.values()}
    assert owners <= {member.id for member in fleet.members}
    assert max(fleet.loads()) - min(fleet.loads()) <= 1
    for member in chance.sample(fleet.members, len(fleet.members)):
        member.look()
        assert plan_of(member.state, member.id) is None
        assert moves([member.state], member.id, set(member.held), held_before=set(member.held)).settled
        assert member.move() == 0
        assert set(member.held) == {key for key, claim in fleet.database.claims.items() if claim.owner == member.id}


@settings(deadline=None, max_examples=100)
@given(STEPS)
def test_plan__whoever_computes_it_and_however_often__is_the_same(steps):
    fleet = Fleet()
    for what, place in steps:
        fleet.act(what, place)
    fleet.join()
    state = fleet.database.group_state([GROUP])[0]
    shuffled = dataclasses.replace(state, members=dict(reversed(state.members.items())), claims=state.claims[::-1])
    plans = [plan_of(state, member) for member in state.members] + [
        plan_of(shuffled, member) for member in state.members
    ]
    assert all(plan == plans[0] for plan in plans)
    assert plan_of(state, UUID(int=2**100)) is None


def settle(fleet, members):
    for _ in range(4):
        for member in members:
            member.look()
            member.plan()
            member.look()
            member.move()
            member.release()


def test_target_leaves_before_it_took_over__claims_stay_where_they_are():
    """Taken for nobody's, they went to whoever came first, and their owners had to hand them over for nothing."""
    a, b, gone = UUID(int=1), UUID(int=2), UUID(int=3)
    claims = [
        ClaimState(1, 0, owner=b, free=False, target=gone),
        ClaimState(1, 1, owner=a, free=False, target=gone),
        ClaimState(1, 2, owner=a, free=False, target=a),
        ClaimState(1, 3, owner=b, free=False, target=b),
    ]
    state = GroupState(GROUP, 5, 4, {a: frozenset({1}), b: frozenset({1})}, claims)
    assert dict(plan_of(state, a)) == {(1, 0): b, (1, 1): a, (1, 2): a, (1, 3): b}


def test_one_joins__only_its_share_moves():
    fleet = Fleet()
    for _ in range(3):
        fleet.join()
    settle(fleet, fleet.members)
    before = {key: claim.epoch for key, claim in fleet.database.claims.items()}
    fleet.join()
    settle(fleet, fleet.members)
    assert sum(claim.epoch != before[key] for key, claim in fleet.database.claims.items()) == 8 // 4


def test_claim_forgotten_after_a_doubt__is_claimed_again_under_a_new_epoch():
    fleet = Fleet()
    fleet.join()
    (member,) = fleet.members
    settle(fleet, fleet.members)
    key = PartitionKey(GROUP, 1, 0)
    epoch = member.held.pop(key)
    member.look()
    assert moves([member.state], member.id, set(member.held), held_before=set(member.held)).wanted == [key]
    member.move()
    assert member.held[key] == epoch + 1


def test_claim_forgotten_after_a_doubt__meant_for_another_meanwhile__is_handed_over():
    """Its owner alone can release it: forgotten, it lay about until the other might take it by force."""
    fleet = Fleet()
    fleet.join()
    settle(fleet, fleet.members)
    (old,) = fleet.members
    fleet.join()
    new = fleet.members[1]
    new.look()
    new.plan()
    old.held.clear()
    for _ in range(3):
        for member in fleet.members:
            member.look()
            member.move()
            member.release()
    assert fleet.loads() == [4, 4]
    assert sorted(map(len, (old.held, new.held))) == [4, 4]


def test_claim_released_behind_the_look__is_not_claimed_again():
    a, b = UUID(int=1), UUID(int=2)
    key = PartitionKey(GROUP, 1, 0)
    claims = [ClaimState(1, 0, owner=a, free=False, target=b)]
    state = GroupState(GROUP, 5, 5, {a: frozenset({1}), b: frozenset({1})}, claims)
    assert moves([state], a, set(), held_before={key}).wanted == []
    found = moves([state], a, set(), held_before=())
    assert found.wanted == [key]
    assert not found.complete([Claim(key, 2, 1, 0, (), takeover=True)])


def test_members_that_read_different_topics__own_only_those():
    database = FakeDatabase(TOPICS, {GROUP: list(TOPICS)})
    members = [Member(database, 1, [1]), Member(database, 2, [2]), Member(database, 3, [1, 2])]
    fleet = Fleet()
    fleet.database, fleet.members = database, members
    settle(fleet, members)
    for key, claim in database.claims.items():
        assert key.topic_id in database.groups[GROUP].members[claim.owner]
    assert sorted(fleet.loads()) == [2, 3, 3]


def state_with(joined_s, unplanned_s, target=None, planned=4, draining=()):
    a = UUID(int=1)
    claims = [ClaimState(1, 0, owner=None, free=True, target=target)]
    return GroupState(GROUP, 5, planned, {a: frozenset({1})}, claims, frozenset(draining), joined_s, unplanned_s)


def test_plan__somebody_has_just_joined__waits_for_company_and_not_for_ever():
    assert plan_in_s(state_with(0.25, 0.25), 1.0) == 0.75
    assert plan_in_s(state_with(1.5, 1.5), 1.0) == 0.0
    # One joins every second half: five times the pause is the most.
    assert plan_in_s(state_with(0.25, 4.75), 1.0) == 0.25
    assert plan_in_s(state_with(0.25, 6.0), 1.0) == 0.0
    assert plan_of(state_with(0.25, 0.25), UUID(int=1), 1.0) is None
    assert look_again_s([state_with(0.25, 0.25)], UUID(int=1), 1.0) == 0.75
    assert look_again_s([state_with(0.25, 0.25)], UUID(int=9), 1.0) == float("inf")


def test_plan__a_member_has_gone__waits_for_nobody():
    gone = UUID(int=3)
    assert plan_in_s(state_with(float("inf"), None, gone), 1.0) == 0.0
    assert plan_in_s(state_with(0.1, 0.1, gone), 1.0) == 0.0
    # One that is drained is there, and hands over what it has.
    assert plan_in_s(state_with(0.1, 0.1, gone, draining=[gone]), 1.0) == 0.9
    assert plan_in_s(state_with(0.1, 0.1, gone, planned=5), 1.0) == float("inf")


def test_moves__meant_for_it_past_the_deadline__is_wanted_from_a_live_owner():
    a, b = UUID(int=1), UUID(int=2)
    claims = [ClaimState(1, 0, owner=b, free=False, target=a, waiting_s=9.0)]
    state = GroupState(GROUP, 5, 5, {a: frozenset({1}), b: frozenset({1})}, claims)
    assert moves([state], a, set(), 10.0, held_before=()).wanted == []
    assert moves([state], a, set(), 9.0, held_before=()).wanted == [PartitionKey(GROUP, 1, 0)]


def test_moves__drained__has_too_much_of_all_even_when_nobody_else_is_there():
    a = UUID(int=1)
    key = PartitionKey(GROUP, 1, 0)
    claims = [ClaimState(1, 0, owner=a, free=False, target=a)]
    state = GroupState(GROUP, 5, 4, {}, claims, frozenset({a}))
    assert moves([state], a, {key}, held_before={key}).surplus == [key]
