"""The fake database against the real one, call by call, on random histories.

What the simulation proves about the core it proves on the model; this is why that says something about PostgreSQL.
"""

import os
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

import psycopg
import pytest
from support.fake_database import ENDLESS, Entry, FakeDatabase, LockedError

from coordinator.core.ranges import from_text, to_text
from coordinator.errors import MemberDeadError
from coordinator.model import PartitionKey
from coordinator.protocol import deliveries, groups
from coordinator.protocol.deliveries import ClaimArrays
from coordinator.protocol.text import quoted_array

HISTORIES = int(os.environ.get("COORDINATOR_TEST_HISTORIES", "40"))
FIRST_SEED = int(os.environ.get("COORDINATOR_TEST_SEED", "1"))
STEPS = 80
PARTITIONS = 2


@dataclass
class Publishing:
    """An open transaction on both sides."""

    connection: psycopg.Connection
    model: object
    name: str


@dataclass
class Pair:
    """One topic and one group, on both sides, and what a caller may know of them."""

    dsn: str
    connection: psycopg.Connection
    topic: str
    topic_id: int
    group_id: int
    model: FakeDatabase
    chance: Random
    coordinators: list[UUID] = field(default_factory=list)
    publishing: list[Publishing] = field(default_factory=list)
    spare: list[psycopg.Connection] = field(default_factory=list)
    locker: psycopg.Connection | None = None
    seen: Counter = field(default_factory=Counter)

    # ---- helpers

    def keys(self, *, strange: bool = True):
        """Some claims, in any order; now and then one that does not exist."""
        keys = [PartitionKey(self.group_id, self.topic_id, partition) for partition in range(PARTITIONS)]
        if strange and self.chance.random() < 0.1:
            keys.append(PartitionKey(self.group_id, self.topic_id, PARTITIONS))
        self.chance.shuffle(keys)
        return keys[: self.chance.randint(1, len(keys))]

    def epoch(self, key):
        known = self.model.claims[key].epoch if key in self.model.claims else 0
        return known - (self.chance.random() < 0.1)

    def owner(self, keys):
        """Mostly the owner of the first, sometimes another."""
        claim = self.model.claims.get(keys[0])
        if claim is not None and claim.owner is not None and self.chance.random() < 0.9:
            return claim.owner
        return self.chance.choice(self.coordinators)

    def ranges(self, lo, hi):
        found = []
        for _ in range(self.chance.randint(0, 3)):
            start = self.chance.randint(lo, hi + 2)
            found.append((start, start + self.chance.randint(1, 3)))
        return list(
            from_text(self.connection.execute("select %s::int8multirange::text", (to_text(found),)).fetchone()[0])
        )

    def rows(self, query, parameters):
        return self.connection.execute(query, parameters, prepare=True).fetchall()

    # ---- steps

    def begin(self):
        if len(self.publishing) >= 3:
            return
        connection = self.spare.pop() if self.spare else psycopg.connect(self.dsn)
        name = connection.execute(
            "select l.virtualtransaction from pg_locks l where l.pid = pg_backend_pid() limit 1"
        ).fetchone()[0]
        self.publishing.append(Publishing(connection, self.model.begin(), name))

    def publish(self):
        if not self.publishing:
            self.begin()
            self.publish()
            self.end()
            return
        publisher = self.chance.choice(self.publishing)
        partitions = [self.chance.randrange(PARTITIONS) for _ in range(self.chance.choice((1, 2)))]
        offsets = publisher.connection.execute(
            "select p.offsets from coordinator.publish_many(%s, %s, p_keys => %s, p_partitions => %s) p",
            (self.topic, [b"x"] * len(partitions), ["k"] * len(partitions), partitions),
        ).fetchone()[0]
        assert offsets == [self.model.publish(publisher.model, self.topic_id, p, "k") for p in partitions]

    def end(self):
        if not self.publishing:
            return
        publisher = self.publishing.pop(self.chance.randrange(len(self.publishing)))
        commit = self.chance.random() < 0.6
        if commit:
            publisher.connection.commit()
        else:
            publisher.connection.rollback()
        self.model.end(publisher.model, commit=commit)
        self.spare.append(publisher.connection)

    def exchange(self):
        keys = self.keys()
        me = self.owner(keys)
        entries = []
        for key in keys:
            newest = self.model.claims[key].newest if key in self.model.claims else None
            seq, committed, hwm = (newest.seq, newest.committed, newest.hwm) if newest else (0, 0, 0)
            # Core bug 11: settled offsets must not join up with a `done` beyond the window; to be dropped with its fix.
            beyond = newest is not None and max(newest.done, default=-1) >= hwm
            settles = not beyond and self.chance.random() < 0.7
            settled = self.ranges(max(committed - 2, 0), hwm) if settles else []
            known_seq = seq - (self.chance.random() < 0.1)
            entries.append(Entry(key, self.epoch(key), known_seq, hwm, settled, self.chance.choice((-1, 0, 1, 3, 100))))
        parameters = deliveries.settle_parameters(
            me,
            ClaimArrays.of([(entry.key, entry.epoch) for entry in entries]),
            [(entry.seq, entry.hwm) for entry in entries],
            [entry.settled for entry in entries],
            [entry.want for entry in entries],
        )
        wanted = self.model.exchange(me, entries)
        assert self.rows(deliveries.EXCHANGE, parameters) == [tuple(answer) for answer in wanted]
        self.seen.update(answer.status for answer in wanted)

    def fetch(self):
        reads = []
        for key in self.keys():
            lo = self.chance.randint(0, self.model.claims[key].newest.committed + 1) if key in self.model.claims else 0
            whole = self.chance.random() < 0.7
            reads.append((key, self.epoch(key), [(lo, ENDLESS)] if whole else self.ranges(0, 20)))
        claims = ClaimArrays.of([(key, epoch) for key, epoch, _ in reads])
        texts = quoted_array(to_text(ranges).replace(str(ENDLESS), "") for _, _, ranges in reads)
        rows = self.rows(deliveries.FETCH, (claims.groups, claims.topics, claims.partitions, claims.epochs, texts))
        assert sorted(row[:2] for row in rows) == [row[:2] for row in self.model.fetch(reads)]
        self.seen["fetched"] += len(rows)
        for place in range(1, len(reads) + 1):
            offsets = [row[1] for row in rows if row[0] == place]
            assert offsets == sorted(offsets)

    def gap_pass(self):
        gaps = [(key.topic_id, key.partition, self.ranges(0, 20)) for key in self.keys(strange=False)]
        parameters = deliveries.gap_parameters([gap[:2] for gap in gaps], [gap[2] for gap in gaps])
        found = deliveries.parse_gaps(self.rows(deliveries.GAP_PASS, parameters))
        wanted = self.model.gap_pass(gaps)
        names = {publishing.model.name: publishing.name for publishing in self.publishing}
        for place, evidence in wanted.items():
            assert found[place].high == evidence.high
            assert set(found[place].holders) == {names[name] for name in evidence.holders}
            assert [row[1] for row in found[place].rows] == [row.offset for row in evidence.rows]
            self.seen["holders"] += len(evidence.holders)
            self.seen["appeared"] += len(evidence.rows)

    def claim(self):
        keys, me = self.keys(), self.chance.choice(self.coordinators)
        statement = groups.claim(me, keys)
        try:
            wanted = self.model.claim(me, keys)
        except MemberDeadError:
            with pytest.raises(psycopg.Error) as caught:
                self.rows(statement.text, statement.parameters)
            assert caught.value.sqlstate == "KG002"
            return
        assert statement.parse(self.rows(statement.text, statement.parameters)) == wanted
        self.seen["taken over"] += sum(claim.takeover for claim in wanted)

    def release(self):
        keys = self.keys()
        me = self.owner(keys)
        claims = [(key, self.epoch(key)) for key in keys]
        found = self.rows(deliveries.RELEASE, deliveries.release_parameters(me, ClaimArrays.of(claims)))
        assert found == [(self.model.release(me, claims),)]
        self.seen["released"] += found[0][0]

    def resolve(self):
        keys = self.keys()
        me = self.owner(keys)
        claims = [(key, self.epoch(key)) for key in keys]
        try:
            wanted = self.model.resolve(me, claims)
        except LockedError:
            return
        statement = deliveries.resolve(me, ClaimArrays.of(claims))
        assert statement.parse(self.rows(statement.text, statement.parameters)) == wanted
        self.seen.update(f"resolved {answer.status}" for answer in wanted)

    def lock(self):
        """Somebody else holds a claim's row, or lets go of it."""
        if self.locker is not None:
            self.locker.rollback()
            self.spare.append(self.locker)
            self.locker = None
            self.model.locked.clear()
            return
        self.locker = self.spare.pop() if self.spare else psycopg.connect(self.dsn)
        key = self.keys(strange=False)[0]
        self.locker.execute(
            "select from coordinator.claims c where (c.group_id, c.topic_id, c.partition) = (%s, %s, %s) for update",
            key,
        )
        self.model.locked.add(key)

    def die(self):
        """A coordinator's lease runs out and it is reaped; another takes its place."""
        gone = self.chance.choice(self.coordinators)
        self.connection.execute(
            "update coordinator.coordinators c set lease_until = '-infinity' where c.coordinator = %s", (gone,)
        )
        self.model.coordinators[gone].lease_until_s = float("-inf")
        statement = groups.reap(7200.0)
        assert sorted(statement.parse(self.rows(statement.text, statement.parameters))) == sorted(
            self.model.reap(7200.0)
        )
        self.register()
        if len(self.coordinators) > 3:
            self.coordinators.remove(gone)

    def register(self):
        me = UUID(int=self.chance.getrandbits(128))
        statement = groups.register(me, "c", "h", 1, 3600.0)
        self.connection.execute(statement.text, statement.parameters)
        self.model.register(me, 3600.0)
        self.coordinators.append(me)

    def close(self):
        for connection in [*self.spare, *(p.connection for p in self.publishing)]:
            connection.close()
        if self.locker is not None:
            self.locker.close()


def make_pair(dsn, connection, name, chance):
    topic_id = connection.execute(
        "select t.topic_id from coordinator.create_topic(%s, %s) t", (name, PARTITIONS)
    ).fetchone()[0]
    joined = groups.join_group(None, name, [name], "earliest", None)
    group_id = joined.parse(connection.execute(joined.text, joined.parameters).fetchall()).group_id
    pair = Pair(
        dsn, connection, name, topic_id, group_id, FakeDatabase({topic_id: PARTITIONS}, {group_id: [topic_id]}), chance
    )
    for _ in range(2):
        pair.register()
    return pair


def test_model__random_histories__answers_what_postgres_answers(dsn):
    steps = [
        *(Pair.begin, Pair.publish, Pair.publish, Pair.publish, Pair.end, Pair.exchange, Pair.exchange, Pair.exchange),
        *(Pair.exchange, Pair.fetch, Pair.gap_pass, Pair.claim, Pair.release, Pair.resolve, Pair.lock, Pair.die),
    ]
    weights = [2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 1, 2, 1, 0.5]
    seen = Counter()
    with psycopg.connect(dsn, autocommit=True) as connection:
        for seed in range(FIRST_SEED, FIRST_SEED + HISTORIES):
            chance = Random(seed)
            pair = make_pair(dsn, connection, f"t{seed}", chance)
            history = []
            try:
                pair.claim()
                for step in chance.choices(steps, weights, k=STEPS):
                    history.append(step.__name__)
                    step(pair)
            except Exception as error:
                raise AssertionError(f"seed {seed}, after {history}: {error}") from error
            finally:
                pair.close()
            seen.update(pair.seen)
    print(seen)
    cases = ("idle", "ok", "fenced", "busy", "stale", "fetched", "holders", "appeared", "released", "taken over")
    assert all(seen[case] > 10 for case in [*cases, "resolved ok", "resolved fenced"]), f"hardly compared: {seen}"


@pytest.mark.xfail(
    strict=True, reason="core bug 11: check (committed <= hwm) fails, and with it every exchange from then on"
)
def test_exchange__done_beyond_the_window__raises_the_window_with_the_committed_offset(dsn):
    """After a release `done` is kept and hwm is lowered, so done may lie above it."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        pair = make_pair(dsn, connection, "t", Random(1))
        key = PartitionKey(pair.group_id, pair.topic_id, 0)
        connection.execute("select from coordinator.publish_many('t', %s, p_partitions => %s)", ([b"x"] * 10, [0] * 10))

        def exchange(epoch, seq, hwm, settled, want):
            parameters = deliveries.settle_parameters(
                pair.coordinators[0], ClaimArrays.of([(key, epoch)]), [(seq, hwm)], [settled], [want]
            )
            return connection.execute(deliveries.EXCHANGE, parameters).fetchone()

        def claim():
            statement = groups.claim(pair.coordinators[0], [key])
            return statement.parse(connection.execute(statement.text, statement.parameters).fetchall())[0]

        first = claim()
        assert exchange(first.epoch, first.seq, 0, [], 10)[1:5] == ("ok", first.seq + 1, 0, 10)
        assert exchange(first.epoch, first.seq + 1, 10, [(1, 8)], 0)[1:5] == ("ok", first.seq + 2, 0, 10)
        again = claim()
        assert exchange(again.epoch, again.seq, 0, [], 2)[1:5] == ("ok", again.seq + 1, 0, 2)
        assert exchange(again.epoch, again.seq + 1, 2, [(0, 1)], 0)[1:5] == ("ok", again.seq + 2, 8, 8)
