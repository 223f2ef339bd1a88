"""Random histories of coordinators, publishers and faults; every law is checked at every step. See support/simulation.py.

COORDINATOR_TEST_SCHEDULES says how many seeds, COORDINATOR_TEST_SEED which is the first; a failure names its seed.
"""

import os
from dataclasses import replace
from random import Random

import pytest
from support.fake_database import FakeDatabase
from support.shrinking import shrink
from support.simulation import Faults, Process, Scenario, Simulation

from coordinator.core import deliveries, loop
from coordinator.core.gaps import Gaps
from coordinator.core.loop import Engine
from coordinator.core.ordering import Lanes
from coordinator.core.partition import Partition
from coordinator.core.ranges import compress
from coordinator.model import GapEvidence

SCHEDULES = int(os.environ.get("COORDINATOR_TEST_SCHEDULES", "240"))
FIRST_SEED = int(os.environ.get("COORDINATOR_TEST_SEED", "1"))

ORDERINGS = ("partition", "key", "none")

ORDERLY = Faults(nack=0.1, reject=0.02, replay=0.05, rollback=0.3, long_publisher=0.2, extend=0.1)
EVERYTHING = Faults(
    lost_before=0.05,
    lost_after=0.03,
    late=0.03,
    refused=0.03,
    lock=0.1,
    freeze=0.12,
    mute=0.12,
    kill=0.03,
    stop=0.03,
    stuck=0.02,
    slow=0.03,
    nack=0.05,
    reject=0.02,
    roll_back=0.05,
    lost_commit=0.05,
    replay=0.05,
    refuse=0.03,
    outage=0.02,
    extend=0.1,
    rollback=0.3,
    long_publisher=0.2,
)


def scenario(seed: int, faults: Faults, ordering: str) -> Scenario:
    chance = Random(seed)
    topics = {topic: chance.randint(1, 3) for topic in range(1, chance.choice((1, 1, 2)) + 1)}
    return Scenario(
        topics=topics,
        groups={group: list(topics) for group in range(1, chance.choice((1, 1, 2)) + 1)},
        processes=chance.randint(1, 3),
        workers=chance.randint(1, 3),
        batch=chance.choice((1, 1, 1, 3)),
        max_window=chance.choice((2, 8, 500)),
        faults=faults,
        ordering=ordering,
        keys=chance.choice((0, 1, 2, 5)),
        transactional=chance.random() < 0.3,
        max_holes=chance.choice((1, 4, 256)),
        max_parked=chance.choice((2, 10, 10_000)),
    )


def run(
    faults: Faults, seeds: range, ordering: str = "partition", *, shrinks: bool = True, ahead: int = 0
) -> list[Simulation]:
    """Run seeds; a failure is shrunk to a short history first, which is then told."""
    done = []
    for seed in seeds:
        simulation = Simulation(replace(scenario(seed, faults, ordering), ahead=ahead), seed)
        try:
            simulation.run()
        except AssertionError as error:
            short = f"\n{shrink(simulation.scenario, seed)}" if shrinks else ""
            raise AssertionError(f"seed {seed}, {ordering}, at {simulation.now_s:.3f} s: {error}{short}") from error
        done.append(simulation)
    return done


@pytest.mark.parametrize("ordering", ORDERINGS)
def test_laws_hold__publishers_roll_back_and_handlers_nack(ordering):
    done = run(ORDERLY, range(FIRST_SEED, FIRST_SEED + SCHEDULES // 10), ordering)
    assert sum(simulation.laws.redeliveries for simulation in done) > 0


@pytest.mark.parametrize("ordering", ORDERINGS)
def test_laws_hold__everything_fails_sometimes(ordering):
    done = run(EVERYTHING, range(FIRST_SEED, FIRST_SEED + SCHEDULES // 3), ordering)
    # I6: zombies did write, and were refused; that nothing of theirs was applied is checked in ClaimRow.write and by I3.
    assert sum(simulation.database.refused_count for simulation in done) > 0
    assert sum(simulation.laws.redeliveries for simulation in done) > 0


@pytest.mark.parametrize("ordering", ORDERINGS)
def test_laws_hold__runs_outlive_dead_letters_that_are_replayed(ordering):
    run(OUTLIVING, range(FIRST_SEED, FIRST_SEED + SCHEDULES // 4), ordering)


@pytest.mark.parametrize("ordering", ORDERINGS)
def test_laws_hold__workers_are_handed_some_ahead(monkeypatch, ordering):
    monkeypatch.setattr(deliveries, "_SHARE", 1)
    done = run(EVERYTHING, range(FIRST_SEED, FIRST_SEED + SCHEDULES // 4), ordering, ahead=4)
    started_ahead = sum(simulation.started_ahead for simulation in done)
    # In the order of a partition nothing may be: its next one starts when the one before is settled.
    assert started_ahead == 0 if ordering == "partition" else started_ahead > 500


def rows_before_locks(monkeypatch):
    """Mutant: S, then L. Who commits between the two is in neither."""

    def gap_pass(self, gaps, between=lambda: None):
        rows = [self._rows(n, topic, partition, ranges) for n, (topic, partition, ranges) in enumerate(gaps, 1)]
        between()
        between()
        return {
            n: GapEvidence(
                self.logs[topic, partition].high,
                tuple(p.name for p in self.logs[topic, partition].publishers),
                rows[n - 1],
            )
            for n, (topic, partition, _) in enumerate(gaps, 1)
        }

    monkeypatch.setattr(FakeDatabase, "gap_pass", gap_pass)


def bare_cursor(monkeypatch):
    """Mutant: an offset without a row is taken for rolled back."""

    def on_read(self, rows):
        if self.position < self.hwm:
            self.ready.extend(rows)
            seen = {row.offset for row in rows}
            self.unsent.extend(compress(set(range(self.position, self.hwm)) - seen))
            self.position = self.hwm

    monkeypatch.setattr(Partition, "on_read", on_read)


def holders_ignored(monkeypatch):
    """Mutant: one pass without a row is proof enough, whoever holds the lock."""
    weigh = Gaps.on_pass
    monkeypatch.setattr(Gaps, "on_pass", lambda self, asked, high, holders, rows: weigh(self, asked, high, (), rows))


def no_stable_offset(monkeypatch):
    """Mutant: a reader in `partition` order goes on behind a gap."""
    monkeypatch.setattr(Gaps, "first", None)


def back_of_the_queue(monkeypatch):
    """Mutant: of what is to be started again, the last comes first, and what is parked below does not matter."""
    monkeypatch.setattr(Partition, "first_urgent", lambda self: self.urgent[-1])


def forgetful(monkeypatch):
    """Mutant: what an exchange did not write is not written with the next one."""

    def on_not_saved(self):
        self.sent, self.sent_hard = None, []

    monkeypatch.setattr(Partition, "on_not_saved", on_not_saved)


def no_fence(monkeypatch):
    """Mutant: no owner, epoch and seq in the WHERE of the exchange."""
    original = FakeDatabase._exchange_one

    def exchange_one(self, coordinator, entry, high, refused):
        claim = self.claims[entry.key]
        before = claim.owner, claim.epoch
        claim.owner, claim.epoch = coordinator, entry.epoch
        answer = original(self, coordinator, entry._replace(seq=claim.newest.seq), high, refused)
        claim.owner, claim.epoch = before
        return answer

    monkeypatch.setattr(FakeDatabase, "_exchange_one", exchange_one)


def no_self_lease(monkeypatch):
    """Mutant: a coordinator dispatches although its lease may have run out."""
    monkeypatch.setattr(Engine, "on_lease", lambda self, until_s: setattr(self, "lease_until_s", float("inf")))


def window_forgotten(monkeypatch):
    """Mutant: what an exchange of unknown outcome has fetched is not read again."""
    recover = Partition.recover

    def recover_and_skip(self, seq, committed, hwm, done, acked):
        recover(self, seq, committed, hwm, done, acked)
        self.position, self.recovering = hwm, False

    monkeypatch.setattr(Partition, "recover", recover_and_skip)


def lanes_ignored(monkeypatch):
    """Mutant: messages of one key run side by side."""
    monkeypatch.setattr(Lanes, "enter", lambda self, row: True)


def outcome_by_number(monkeypatch):
    """Mutant: what an exchange carried is taken for written when the progress has moved on by anything."""
    monkeypatch.setattr(loop, "_is_written", lambda partition, answer, entry, certain: answer.seq > partition.seq)


def ahead_outlives_the_lease(monkeypatch):
    """Mutant: what was handed over ahead is started whenever its taker comes to it, and never taken back."""
    monkeypatch.setattr(Engine, "_reclaim", lambda self, ahead: None)
    monkeypatch.setattr(Process, "may_start", True)


def ahead_loses_its_place(monkeypatch):
    """Mutant: what is taken back of what was handed over ahead gives up its key, and comes again beside another one of it."""
    reclaim = Engine._reclaim

    def and_leave(self, ahead):
        waiting = list(ahead.messages)
        reclaim(self, ahead)
        for message in waiting:
            message.owner.lanes.leave(message.key)

    monkeypatch.setattr(Engine, "_reclaim", and_leave)


def lives_are_one(monkeypatch):
    """Mutant: what a run says that outlived its message's dead letter is taken for a word about the replay."""
    monkeypatch.setattr(Engine, "_outlived", staticmethod(lambda delivery: False))


OUTLIVING = Faults(slow=0.3, nack=0.2, reject=0.2, replay=0.5)
LATE = Faults(late=0.3, nack=0.3, slow=0.1, lost_before=0.1, rollback=0.1)
LOCKING = Faults(lock=0.5, rollback=0.3, long_publisher=0.2, nack=0.1)


@pytest.mark.parametrize(
    ("mutant", "faults", "ordering"),
    [
        (rows_before_locks, ORDERLY, "partition"),
        (bare_cursor, ORDERLY, "none"),
        (holders_ignored, ORDERLY, "key"),
        (no_stable_offset, ORDERLY, "partition"),
        (back_of_the_queue, ORDERLY, "partition"),
        (forgetful, LOCKING, "key"),
        (no_fence, EVERYTHING, "partition"),
        (no_self_lease, EVERYTHING, "key"),
        (window_forgotten, EVERYTHING, "none"),
        (lanes_ignored, ORDERLY, "key"),
        (outcome_by_number, LATE, "none"),
        (lives_are_one, OUTLIVING, "none"),
    ],
)
def test_laws__a_mutant__are_seen_to_be_broken(monkeypatch, mutant, faults, ordering):
    """The laws notice what they are there for."""
    mutant(monkeypatch)
    with pytest.raises(AssertionError, match=r"^seed \d+, "):
        run(faults, range(FIRST_SEED, FIRST_SEED + 150), ordering, shrinks=False)


@pytest.mark.parametrize("mutant", [ahead_outlives_the_lease, ahead_loses_its_place])
def test_laws__a_mutant_of_what_is_handed_over_ahead__are_seen_to_be_broken(monkeypatch, mutant):
    monkeypatch.setattr(deliveries, "_SHARE", 1)
    mutant(monkeypatch)
    with pytest.raises(AssertionError, match=r"^seed \d+, "):
        run(EVERYTHING, range(FIRST_SEED, FIRST_SEED + 150), "key", shrinks=False, ahead=4)


@pytest.mark.parametrize(
    ("mutant", "faults", "ordering"),
    [(forgetful, LOCKING, "key"), (window_forgotten, EVERYTHING, "none")],
)
def test_failure__a_planted_bug__shrinks_to_a_short_history(monkeypatch, mutant, faults, ordering):
    """Out of a scenario of several processes and some thousand decisions, what is needed to break the law is a handful."""
    mutant(monkeypatch)
    with pytest.raises(AssertionError, match=r"^seed \d+, ") as failed:
        run(faults, range(1, 400), ordering, shrinks=False)
    seed = int(str(failed.value).split()[1].rstrip(","))
    before = Simulation(scenario(seed, faults, ordering), seed)
    with pytest.raises(AssertionError):
        before.run()
    short = shrink(before.scenario, seed)
    print(short)
    assert 1 <= len(short.only) <= 8
    assert len(short.story) <= len(before.story)
    assert str(short).count("\n") < 75
    # It is what was broken before, and is so again.
    assert short.error.partition(":")[0] == str(failed.value).partition(" s: ")[2].partition(":")[0]
    again = Simulation(short.scenario, seed, short.only)
    with pytest.raises(AssertionError) as same:
        again.run()
    assert (str(same.value), tuple(again.story)) == (short.error, short.story)
    # And without its faults it is not.
    Simulation(short.scenario, seed, frozenset()).run()
