"""The proof of burnt offsets against publishers that open, take offsets, commit, roll back and are prepared."""

from hypothesis import given, settings
from hypothesis import strategies as st
from support.fake_database import FakeDatabase

from coordinator.core.gaps import Gaps
from coordinator.core.ranges import compress, size, subtract

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("begin")),
        st.tuples(st.just("publish"), st.integers(0, 5), st.integers(1, 3)),
        st.tuples(st.just("commit"), st.integers(0, 5)),
        st.tuples(st.just("roll back"), st.integers(0, 5)),
        st.tuples(st.just("read")),
        st.tuples(st.just("pass"), st.lists(st.sampled_from(["commit", "roll back", "publish", "none"]), max_size=4)),
        st.tuples(st.just("reconnect")),
    ),
    max_size=50,
)


class Reader:
    """Reads to V, notes what is missing, makes passes; knows from the publishers what is true."""

    def __init__(self, database):
        self.database = database
        self.log = database.logs[1, 0]
        self.gaps = Gaps()
        self.position = 0
        self.seen = set()
        self.burnt = set()

    def read(self):
        end = self.log.high + 1
        visible = [offset for offset in self.log.rows if self.position <= offset < end]
        self.seen.update(visible)
        self.gaps.note(subtract((self.position, end), compress(visible)))
        self.position = max(self.position, end)

    def evidence_pass(self, between=lambda: None):
        asked = self.gaps.ranges()
        evidence = self.database.gap_pass([(1, 0, asked)], between)[1]
        appeared = [row.offset for row in evidence.rows]
        burnt = self.gaps.on_pass(asked, evidence.high, evidence.holders, appeared)
        self.seen.update(appeared)
        self.burnt.update(offset for lo, hi in burnt for offset in range(lo, hi))

    def check(self):
        """Every offset read is in exactly one place: seen, burnt or a gap; no committed one is ever burnt."""
        assert self.burnt <= self.log.burnt
        gaps = {offset for lo, hi in self.gaps.ranges() for offset in range(lo, hi)}
        assert self.seen | self.burnt | gaps == set(range(self.position))
        assert len(self.seen) + len(self.burnt) + self.gaps.size == self.position
        assert self.gaps.first == min(gaps, default=None)
        assert self.gaps.size == size(self.gaps.ranges()) == len(gaps)
        assert bool(self.gaps) == bool(gaps)
        assert len(self.gaps) >= len(self.gaps.ranges())


@settings(deadline=None, max_examples=500)
@given(STEPS)
def test_no_offset_that_commits_is_burnt_and_every_rolled_back_one_is_within_two_passes(steps):
    database = FakeDatabase({1: 1}, {1: [1]})
    reader = Reader(database)
    open_ = []

    def change(what, place):
        if what == "publish" and open_:
            database.publish(open_[place % len(open_)], 1, 0)
        elif what in ("commit", "roll back") and open_:
            database.end(open_.pop(place % len(open_)), commit=what == "commit")

    for step in steps:
        match step:
            case ("begin",):
                open_.append(database.begin())
            case ("publish", place, times):
                for _ in range(times):
                    change("publish", place)
            case ("read",):
                reader.read()
            case ("pass", between):
                # Other transactions go on between the snapshots of a pass.
                todo = iter(between)
                reader.evidence_pass(lambda todo=todo: change(next(todo, "none"), 0))
            case ("reconnect",):
                reader.gaps.void()
            case (what, place):
                change(what, place)
        reader.check()

    while open_:
        database.end(open_.pop(), commit=len(open_) % 2 == 0)
    reader.read()
    reader.evidence_pass()
    reader.evidence_pass()
    assert not reader.gaps
    assert reader.seen == set(database.logs[1, 0].rows)
    assert reader.burnt == database.logs[1, 0].burnt


@given(st.integers(1, 4))
def test_publisher_gone__one_other_still_open__does_not_hold_up_the_proof_of_what_came_before_it(later):
    """H(g) is what was open in the first pass; who opens afterwards can't have taken g."""
    database = FakeDatabase({1: 1}, {1: [1]})
    reader = Reader(database)
    first = database.begin()
    database.publish(first, 1, 0)
    reader.read()
    reader.evidence_pass()
    others = [database.begin() for _ in range(later)]
    for other in others:
        database.publish(other, 1, 0)
    database.end(first, commit=False)
    reader.evidence_pass()
    assert reader.burnt == {0}


def test_prepared__is_a_holder_until_it_ends():
    """It keeps its virtual transaction's name, and its lock."""
    database = FakeDatabase({1: 1}, {1: [1]})
    reader = Reader(database)
    prepared = database.begin()
    database.publish(prepared, 1, 0)
    reader.read()
    for _ in range(5):
        reader.evidence_pass()
        assert not reader.burnt
    database.end(prepared, commit=True)
    reader.evidence_pass()
    assert reader.seen == {0}


def test_gap_noted_while_a_pass_is_under_way__is_not_judged_by_it():
    gaps = Gaps()
    gaps.note([(0, 2)])
    asked = gaps.ranges()
    gaps.note([(2, 4)])
    assert gaps.on_pass(asked, 9, [], []) == [(0, 2)]
    assert gaps.ranges() == [(2, 4)]


def test_high_below_the_gap__does_not_count_as_a_pass():
    """A server that lost the end of a sequence: who took the offset may not have taken its lock there yet."""
    gaps = Gaps()
    gaps.note([(5, 6)])
    assert gaps.on_pass(gaps.ranges(), 4, [], []) == []
    assert gaps.on_pass(gaps.ranges(), 5, [], []) == [(5, 6)]


def test_void__forgets_the_evidence_and_keeps_the_gaps():
    gaps = Gaps()
    gaps.note([(0, 1)])
    assert gaps.on_pass(gaps.ranges(), 0, ["3/1"], []) == []
    gaps.void()
    assert gaps.on_pass(gaps.ranges(), 0, ["-1/7"], []) == []
    assert gaps.on_pass(gaps.ranges(), 0, [], []) == [(0, 1)]
