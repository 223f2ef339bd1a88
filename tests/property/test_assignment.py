"""Laws of the plan, against minima that are computed in another way."""

import itertools
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.core.assignment import plan

T1 = frozenset({1})


def spread(count, topic=1):
    return [(topic, number) for number in range(count)]


def counts(members, owners):
    return [sum(owner == member for owner in owners.values()) for member in members]


def moved(previous, owners):
    """Partitions that change hands; those that nobody alive owned are given, not moved."""
    return sum(owners.get(partition) != owner for partition, owner in previous.items())


def fewest_moves(members, partitions, previous):
    """By formula, for members that read the same: everybody may keep what fits into a balanced share, the rest moves.

    With n = q m + r partitions, r members have room for q + 1: best those that have more than q now.
    """
    share, extra = divmod(len(partitions), len(members))
    held = sorted((sum(owner == member for owner in previous.values()) for member in members), reverse=True)
    kept = sum(min(count, share + (place < extra)) for place, count in enumerate(held))
    return len(previous) - kept


def unevenness(members, owners):
    return sum(count * count for count in counts(members, owners))


def least_unevenness(members, partitions):
    """Over all assignments there are."""
    readers = [[member for member in members if topic in members[member]] for topic, _ in partitions]
    return min(
        unevenness(members, dict(zip(partitions, choice, strict=True))) for choice in itertools.product(*readers)
    )


def fewest_moves_by_trying(members, partitions, previous):
    """Over all assignments that are balanced within one."""
    return min(
        moved(previous, owners)
        for choice in itertools.product(members, repeat=len(partitions))
        for owners in [dict(zip(partitions, choice, strict=True))]
        if max(counts(members, owners)) - min(counts(members, owners)) <= 1
    )


EQUAL = st.integers(1, 9).flatmap(
    lambda members: st.lists(st.one_of(st.none(), st.integers(0, members + 2)), min_size=0, max_size=30).map(
        lambda owners: (members, owners)
    )
)


@settings(deadline=None, max_examples=400)
@given(EQUAL)
def test_equal_topics__balance_within_one_and_fewest_moves(case):
    count, before = case
    members = dict.fromkeys(range(count), T1)
    partitions = spread(len(before))
    previous = {partition: owner for partition, owner in zip(partitions, before, strict=True) if owner is not None}
    owners = plan(members, partitions, previous)
    assert sorted(owners) == partitions
    assert max(counts(members, owners)) - min(counts(members, owners)) <= 1
    assert moved(previous, owners) == fewest_moves(members, partitions, previous)
    assert plan(members, partitions, owners) == owners


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 3), st.lists(st.integers(0, 3), max_size=6))
def test_fewest_moves__the_formula__is_right(count, before):
    """What the law above compares with, checked by trying everything."""
    members = dict.fromkeys(range(count), T1)
    previous = dict(zip(spread(len(before)), before, strict=True))
    assert fewest_moves(members, list(previous), previous) == fewest_moves_by_trying(members, list(previous), previous)


def test_equal_topics__two_loaded_members_and_an_empty_one__moves_four():
    """Emptying the first giver before the second looks took five: one partition went to the first, which had given."""
    partitions = spread(12)
    previous = {partition: partition[1] // 6 for partition in partitions}
    owners = plan(dict.fromkeys(range(3), T1), partitions, previous)
    assert moved(previous, owners) == 4


@settings(deadline=None, max_examples=150)
@given(
    topics=st.lists(st.sets(st.integers(1, 3)).map(frozenset), min_size=1, max_size=4),
    sizes=st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 2)),
    seed=st.integers(0, 10_000),
)
def test_different_topics__loads_are_as_even_as_can_be(topics, sizes, seed):
    members = dict(enumerate(topics))
    partitions = [
        partition
        for topic, count in enumerate(sizes, 1)
        for partition in spread(count, topic)
        if any(topic in read for read in topics)
    ]
    chance = random.Random(seed)
    previous = {partition: chance.randrange(len(members) + 1) for partition in partitions}
    owners = plan(members, partitions, previous)
    assert sorted(owners) == sorted(partitions)
    assert all(topic in members[owner] for (topic, _), owner in owners.items())
    assert unevenness(members, owners) == least_unevenness(members, partitions)
    assert plan(members, partitions, owners) == owners


def test_different_topics__a_chain_is_needed__is_found():
    """0 reads topic 1 only, 2 reads topic 2 only: 0 can be helped only by way of 1."""
    members = {0: T1, 1: frozenset({1, 2}), 2: frozenset({2})}
    previous = {(1, 0): 0, (1, 1): 0, (1, 2): 0, (2, 0): 1, (2, 1): 1, (2, 2): 2}
    owners = plan(members, sorted(previous), previous)
    assert counts(members, owners) == [2, 2, 2]
    assert moved(previous, owners) == 2


@given(st.integers(1, 6), st.integers(0, 20), st.randoms(use_true_random=False))
def test_plan__who_computes_it__makes_no_difference(count, partition_count, chance):
    """The caller sorts members; how `previous` came together does not matter."""
    partitions = spread(partition_count)
    previous = {partition: chance.randrange(count) for partition in partitions}
    members = dict.fromkeys(range(count), T1)
    shuffled = list(previous.items())
    chance.shuffle(shuffled)
    assert plan(members, partitions, previous) == plan(dict(members), partitions, dict(shuffled))


@given(st.integers(1, 30), st.integers(0, 29))
def test_more_members_than_partitions__everybody_has_at_most_one(count, partition_count):
    partition_count = min(partition_count, count)
    owners = plan(dict.fromkeys(range(count), T1), spread(partition_count), {})
    assert sorted(owners) == spread(partition_count)
    assert len(set(owners.values())) == partition_count


def test_no_members__nobody_owns_anything():
    assert plan({}, spread(3), {(1, 0): 7}) == {}


def test_topic_nobody_reads__has_no_owner():
    assert plan({0: T1}, [(1, 0), (2, 0)], {}) == {(1, 0): 0}


@given(st.integers(2, 12), st.integers(0, 64), st.integers(0, 11))
def test_member_leaves__only_what_was_its_moves(count, partition_count, place):
    partitions = spread(partition_count)
    before = plan(dict.fromkeys(range(count), T1), partitions, {})
    gone = place % count
    after = plan({member: T1 for member in range(count) if member != gone}, partitions, before)
    assert all(after[partition] == owner for partition, owner in before.items() if owner != gone)


@given(st.integers(1, 12), st.integers(0, 64))
def test_member_joins__only_to_it_anything_moves(count, partition_count):
    partitions = spread(partition_count)
    before = plan(dict.fromkeys(range(count), T1), partitions, {})
    after = plan(dict.fromkeys(range(count + 1), T1), partitions, before)
    assert {after[partition] for partition, owner in before.items() if after[partition] != owner} <= {count}
    assert moved(before, after) == partition_count // (count + 1)


def test_large_group__is_planned_in_a_moment():
    """1,024 partitions and 64 members, from all on one member."""
    partitions = spread(1024)
    owners = plan(dict.fromkeys(range(64), T1), partitions, dict.fromkeys(partitions, 0))
    assert set(counts(range(64), owners)) == {16}
