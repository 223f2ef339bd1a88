"""Range arithmetic against plain sets of offsets."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.ranges import compress, contains, from_text, merge, size, subtract, to_text

OFFSETS = st.lists(st.integers(0, 60))
PAIRS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 8)).map(lambda pair: (pair[0], pair[0] + pair[1])))


def members(ranges):
    return {offset for lo, hi in ranges for offset in range(lo, hi)}


def assert_normalised(ranges):
    assert all(lo < hi for lo, hi in ranges)
    assert all(left[1] < right[0] for left, right in pairwise(ranges))


@given(OFFSETS)
def test_compress__any_offsets__covers_just_them(offsets):
    ranges = compress(offsets)
    assert members(ranges) == set(offsets)
    assert_normalised(ranges)


@given(PAIRS, PAIRS, OFFSETS)
def test_merge__any_ranges__is_their_union(some, others, offsets):
    ranges = merge(some, others, compress(offsets))
    assert members(ranges) == members(some) | members(others) | set(offsets)
    assert_normalised(ranges)


@given(st.integers(0, 60), st.integers(0, 60), PAIRS)
def test_subtract__any_window__is_their_difference(lo, hi, pairs):
    ranges = list(subtract((lo, hi), merge(pairs)))
    assert members(ranges) == set(range(lo, hi)) - members(pairs)
    assert_normalised(ranges)


@given(PAIRS, st.integers(0, 70))
def test_contains_and_size__any_ranges__are_those_of_the_set(pairs, offset):
    ranges = merge(pairs)
    assert contains(ranges, offset) == (offset in members(pairs))
    assert size(ranges) == len(members(pairs))


@given(PAIRS, st.integers(0, 2**62))
def test_text__any_ranges__comes_back(pairs, base):
    ranges = merge([(lo + base, hi + base) for lo, hi in pairs])
    assert from_text(to_text(ranges)) == tuple(ranges)


def test_text__none_one_and_two():
    assert to_text([]) == "{}"
    assert to_text([(1, 3)]) == "{[1,3)}"
    assert to_text([(1, 3), (5, 6)]) == "{[1,3),[5,6)}"
    assert from_text("{}") == ()
    assert from_text("{[1,3),[5,6)}") == ((1, 3), (5, 6))
