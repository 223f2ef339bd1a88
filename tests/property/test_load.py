"""Many messages, and what a few of them may do to the others: poison, hot partitions, handlers that always fail."""

from collections import Counter

import pytest
from support.engine_driver import NACK, Shell
from support.fake_database import FakeDatabase, Log
from support.simulation import Faults, Scenario, Simulation

from coordinator.core.loop import Engine, Limits
from coordinator.core.retry import RetryPolicy

MILLION = 1_000_000


class Rows:
    """The rows of a partition that is full from 0 on, without holding them."""

    def __init__(self, count, key_count):
        self.count = count
        self.key_count = key_count

    def __contains__(self, offset):
        return 0 <= offset < self.count

    def __getitem__(self, offset):
        return f"k{offset % self.key_count}" if self.key_count else None

    def get(self, offset):
        return self[offset]


def full(count, key_count=0):
    return Log(high=count - 1, rows=Rows(count, key_count))


POISON = frozenset({(1, 0, 3), (1, 3, 120), (1, 7, 249)})


def run_with_poison(seeds):
    """Three poison messages among 2,000 on 8 partitions."""
    for seed in seeds:
        scenario = Scenario(
            topics={1: 8},
            groups={1: [1]},
            processes=2,
            workers=4,
            batch=1,
            max_window=500,
            faults=Faults(),
            publishers=0,
            faulty_s=0.1,
            calm_s=900.0,
            ordering="key",
            keys=40,
            poison=POISON,
        )
        simulation = Simulation(scenario, seed)
        for partition in range(8):
            keys = [f"k{partition}-{number}" for number in range(20)]
            simulation.database.published(1, partition, 250, keys)
        simulation.run()
        dead = {
            (*key[1:], offset): row.reason
            for key, claim in simulation.database.claims.items()
            for offset, row in claim.dead.items()
        }
        assert dead == dict.fromkeys(POISON, "crash"), f"seed {seed}"
        starts = Counter(simulation.laws.start_counts)
        assert max(starts.values()) <= scenario.policy.max_crashes, f"seed {seed}: {starts.most_common(3)}"


def test_poison__three_among_two_thousand_on_eight_partitions__just_these_die():
    """I11, I13. Whoever runs beside them is charged as well, and runs alone before that can cost him anything."""
    run_with_poison((1, 2))


def test_poison__charges_are_taken_for_proof__innocents_die(monkeypatch):
    """The test above sees what it is there for: a mutant that buries whoever was charged often enough."""

    def crashed(self, partition, row, facts):
        if facts.crashes < partition.subscription.policy.max_crashes:
            return False
        self._bury(partition, row, facts, "crash", NACK, facts.crashes)
        return True

    monkeypatch.setattr(Engine, "_crashed", crashed)
    with pytest.raises(AssertionError):
        run_with_poison((1,))


def test_hot_partition__a_million_messages__does_not_keep_seven_others_waiting():
    """Design 4.3: each partition in its turn."""
    for ordering in ("partition", "key", "none"):
        database = FakeDatabase({1: 8}, {1: [1]})
        database.logs[1, 0] = full(MILLION, 1000)
        for partition in range(1, 8):
            database.published(1, partition, 10, keys=["a", "b", "c"])
        shell = Shell(database, ordering=ordering)
        shell.claim_all()
        seen = Counter()
        while sum(count for partition, count in seen.items() if partition) < 70:
            shell.until_waiting()
            for message in shell.start():
                seen[message.partition] += 1
                shell.ack(message)
            shell.now_s += 0.001
            assert seen[0] < 100, f"{ordering}: {seen}"


def test_every_message_fails__a_million_behind_it__memory_stays_flat():
    """I15, case 22."""
    limits = Limits(max_window=50, max_parked=200, linger_s=0.0)
    for ordering, key_count in (("none", 0), ("key", 100), ("key", 1), ("partition", 0)):
        database = FakeDatabase({1: 1}, {1: [1]})
        database.logs[1, 0] = full(MILLION, key_count)
        shell = Shell(database, limits=limits, ordering=ordering, policy=RetryPolicy(max_attempts=3, delays=[0.05]))
        shell.claim_all()
        (partition,) = shell.engine.partitions.values()
        (claim,) = database.claims.values()
        most = starts = 0
        for _ in range(300):
            shell.pass_time(0.05)
            batch = [message for _ in range(20) for message in shell.start(1)]
            starts += len(batch)
            for message in batch:
                shell.nack(message)
            held = [partition.ready, partition.urgent, partition.in_flight, partition.failing, partition.facts]
            held += [partition.parked, partition.handed, partition.ahead, partition.hard, partition.lanes._lanes]
            held += [
                partition.settled,
                partition.unsent,
                partition.done,
                list(partition.lanes.rows()),
                shell.engine.heap,
            ]
            most = max(most, sum(map(len, held)))
            claim.history[:-1] = []  # the tables are not what is measured
        assert most < 4000, f"{ordering}, {key_count} keys: {most}"
        assert len(claim.dead) > 80, f"{ordering}, {key_count} keys: {starts} starts and {len(claim.dead)} dead"
        assert len(claim.retries) <= limits.max_parked + 2 * limits.max_window
