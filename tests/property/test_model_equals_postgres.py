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
from support.fake_database import ENDLESS, SQL_BUGS, CrashRow, Entry, FakeDatabase

from coordinator.core.ranges import from_text, to_text
from coordinator.errors import AlreadySettledError, MemberDeadError, StaleEpochError
from coordinator.model import Due, PartitionKey, Settled
from coordinator.protocol import deliveries, groups
from coordinator.protocol.deliveries import ClaimArrays
from coordinator.protocol.text import quoted_array

HISTORIES = int(os.environ.get("COORDINATOR_TEST_HISTORIES", "40"))
FIRST_SEED = int(os.environ.get("COORDINATOR_TEST_SEED", "1"))
STEPS = 120
PARTITIONS = 2
KEYS = ("k", "l", None)

# coordinator.now_() is a row that the test sets: then delays and ages are the same on both sides.
CLOCK = """
create table public.test_clock (at timestamptz);
insert into public.test_clock values ('2026-01-01 00:00:00+00');
create or replace function coordinator.now_() returns timestamptz language sql volatile as 'select at from public.test_clock';
"""


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
        keys = self.chance.choices(KEYS, k=len(partitions))
        offsets = publisher.connection.execute(
            "select p.offsets from coordinator.publish_many(%s, %s, p_keys => %s, p_partitions => %s) p",
            (self.topic, [b"x"] * len(partitions), keys, partitions),
        ).fetchone()[0]
        assert offsets == [
            self.model.publish(publisher.model, self.topic_id, partition, key)
            for partition, key in zip(partitions, keys, strict=True)
        ]

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

    def open_or_parked(self, key):
        """An offset of a claim that an owner may say something of; None where there is none."""
        claim = self.model.claims[key]
        newest = claim.newest
        offsets = [*claim.retries, *(o for o in range(newest.committed, newest.hwm) if o not in newest.done)]
        return self.chance.choice(offsets) if offsets else None

    def hard(self, key):
        """Some entries that are more than an ack."""
        lines = []
        for kind in self.chance.choices(
            ("retry", "retry", "behind", "dead", "clear", "alone", "empty", "fold", "charged"),
            k=self.chance.randint(1, 4),
        ):
            offset, name = self.open_or_parked(key), self.chance.choice(KEYS)
            if offset is None:
                continue
            line = {"k": kind, "offset": offset, "key": name}
            if kind == "retry":
                line |= {
                    "delay_s": self.chance.choice((0, 5)),
                    "running": self.chance.random() < 0.3,
                    "replays": self.chance.choice((0, 1)),
                    "error": {"error": "e"},
                }
            elif kind == "behind":
                line = {"k": kind, "key": name, "offsets": sorted({offset, self.open_or_parked(key)})}
            elif kind == "dead":
                line |= {"reason": "attempts", "error": {"error": "e"}, "attempts": 5, "crashes": 1}
                line |= {"guard": self.chance.random() < 0.3, "replays": self.chance.choice((0, 0, 1))}
            elif kind == "alone":
                line |= {"replays": self.chance.choice((0, 1))}
            elif kind == "fold":
                line = {"k": kind, "offsets": [offset for offset, _ in self.model.claims[key].acks]}
            elif kind == "charged":
                line = {"k": kind, "committed": self.model.claims[key].newest.committed}
            elif kind == "empty":
                line = {"k": kind}
            lines.append(line)
        return lines

    def exchange(self):
        keys = self.keys()
        me = self.owner(keys)
        entries = []
        for key in keys:
            newest = self.model.claims[key].newest if key in self.model.claims else None
            seq, committed, hwm = (newest.seq, newest.committed, newest.hwm) if newest else (0, 0, 0)
            hard = self.hard(key) if newest is not None and self.chance.random() < 0.5 else []
            if any(line["k"] == "alone" for line in hard):
                hard.append({"k": "empty"})
            settled = self.ranges(max(committed - 2, 0), hwm) if self.chance.random() < 0.5 else []
            known_seq = seq - (self.chance.random() < 0.1)
            want = self.chance.choice((-1, 0, 1, 3, 100))
            entries.append(Entry(key, self.epoch(key), known_seq, hwm, settled, want, hard))
        parameters = deliveries.settle_parameters(
            me,
            ClaimArrays.of([(entry.key, entry.epoch) for entry in entries]),
            [(entry.seq, entry.hwm) for entry in entries],
            [entry.settled for entry in entries],
            [entry.want for entry in entries],
            [{"o": place, **line} for place, entry in enumerate(entries, 1) for line in entry.hard],
        )
        wanted = self.model.exchange(me, entries)
        found = [Settled(*row) for row in self.rows(deliveries.EXCHANGE, parameters)]
        assert [plain(answer) for answer in found] == [plain(answer) for answer in wanted], parameters
        self.seen.update(answer.status for answer in wanted)
        self.seen.update(
            f"hard {line['k']}" for a, e in zip(wanted, entries, strict=True) if a.status == "ok" for line in e.hard
        )
        self.seen["refused"] += sum(bool(answer.refused) for answer in wanted)

    def dispatch_due(self):
        keys = self.keys()
        me = self.owner(keys)
        asked = [(key, self.epoch(key), self.chance.choice((1, 2, 200))) for key in keys]
        claims = ClaimArrays.of([(key, epoch) for key, epoch, _ in asked])
        found = self.rows(deliveries.DUE, deliveries.due_parameters(me, claims, [count for *_, count in asked]))
        wanted = self.model.dispatch_due(me, asked)
        assert [Due(*row) for row in found] == wanted
        self.seen["due later"] += sum(due.due_in_s is not None for due in wanted)

    def fetch_retries(self):
        asked = [(key, self.epoch(key), self.ranges(0, 10)) for key in self.keys()]
        claims = ClaimArrays.of([(key, epoch) for key, epoch, _ in asked])
        parameters = deliveries.parked_parameters(claims, [held for *_, held in asked])
        found = deliveries.parse_parked(self.rows(deliveries.PARKED, parameters))
        wanted = self.model.fetch_retries(asked)
        assert sorted((*row[:2], row.key, *facts) for row, facts in found) == [
            (*row[:2], row.key, *facts) for row, facts in wanted
        ]
        self.seen["parked"] += len(wanted)

    def ack(self):
        key = self.keys(strange=False)[0]
        offsets = {offset for offset in (self.open_or_parked(key), self.open_or_parked(key)) if offset is not None}
        if not offsets or key in self.model.locked:
            return
        me, epoch = self.owner([key]), self.epoch(key)
        offsets = sorted(offsets)
        rows = self.model.claims[key].retries
        replays = [rows[offset].replays if offset in rows else 0 for offset in offsets]
        statement = deliveries.ack(me, key, epoch, offsets, replays)
        try:
            self.model.ack(me, key, epoch, offsets, replays)
        except (StaleEpochError, AlreadySettledError) as error:
            with pytest.raises(psycopg.Error) as caught:
                self.rows(statement.text, statement.parameters)
            wanted = "KG001" if isinstance(error, StaleEpochError) else "KG011"
            assert caught.value.sqlstate == wanted
            self.seen[f"ack {type(error).__name__}"] += 1
        else:
            self.rows(statement.text, statement.parameters)
            self.seen["ack"] += 1

    def replay(self):
        key = self.keys(strange=False)[0]
        if key in self.model.locked:
            return
        offsets, room = [*self.model.claims[key].dead, self.chance.randint(0, 10)], self.chance.choice((1, 3, 10_000))
        query = 'select r."offset", r.outcome from coordinator.replay(%s, %s, %s, %s, %s) r'
        found = self.rows(query, (self.topic, self.topic, key.partition, offsets, room))
        wanted = self.model.replay(key, offsets, room)
        assert found == wanted
        self.seen.update(outcome for _, outcome in wanted)

    def seek(self):
        key = self.keys(strange=False)[0]
        if key in self.model.locked:
            return
        target = self.chance.randint(-2, self.model.logs[key[1:]].high + 3)
        wanted = self.model.seek(key, target)
        query = (
            "select s.from_offset, s.to_offset, s.skipped, s.parked, s.dead_letters "
            "from coordinator.seek(%s, %s, %s, 'offset', %s, null, true, true) s"
        )
        assert self.rows(query, (self.topic, self.topic, key.partition, target)) == [wanted]
        self.seen["seek back"] += wanted[1] < wanted[0]
        self.seen["seek forth"] += wanted[1] > wanted[0]
        self.seen["seek took back parked"] += wanted[3]
        self.seen["seek closed"] += wanted[4]

    def skip(self):
        key = self.keys(strange=False)[0]
        if key in self.model.locked:
            return
        offset, dead_letter = self.open_or_parked(key), self.chance.random() < 0.5
        if offset is None or self.chance.random() < 0.2:
            offset = self.chance.randint(0, self.model.logs[key[1:]].high + 3)
        wanted = self.model.skip(key, offset, dead_letter=dead_letter)
        query = "select s.state from coordinator.skip(%s, %s, %s, %s, %s, true) s"
        parameters = (self.topic, self.topic, key.partition, offset, dead_letter)
        if wanted.startswith("KG"):
            with pytest.raises(psycopg.Error) as caught:
                self.rows(query, parameters)
            assert caught.value.sqlstate == wanted
        else:
            assert self.rows(query, parameters) == [(wanted,)]
        self.seen[f"skip {wanted}"] += 1

    def withdraw(self):
        me = self.chance.choice(self.coordinators)
        self.connection.execute("select coordinator.withdraw_charge(%s)", (me,))
        self.model.withdraw_charge(me)

    def pass_time(self):
        self.model.now_s += self.chance.choice((0.25, 1.0, 5.0))
        self.connection.execute(
            "update public.test_clock c set at = '2026-01-01 00:00:00+00'::timestamptz + make_interval(secs => %s)",
            (self.model.now_s,),
        )

    def compare_tables(self):
        """Everything that hangs on a claim is the same on both sides."""
        for key, claim in self.model.claims.items():
            where = 'where (x.group_id, x.topic_id, x.partition) = (%s, %s, %s) order by x."offset"'
            found = self.rows(
                'select x."offset", x.key, x.fails, x.crashes, extract(epoch from x.next_at - %s)::float8, x.behind_key, '
                "x.dispatched_epoch, x.alone, x.crashed_by, x.replays, x.payload is not null from coordinator.retries x "
                + where,
                ("2026-01-01 00:00:00+00", *key),
            )
            assert found == [
                (
                    o,
                    w.key,
                    w.fails,
                    w.crashes,
                    w.next_at_s,
                    w.behind,
                    w.dispatched,
                    w.alone,
                    w.crashed_by,
                    w.replays,
                    w.payload,
                )
                for o, w in sorted(claim.retries.items())
            ]
            found = self.rows(
                'select x."offset", x.replay, x.epoch from coordinator.acks x ' + where + ", x.replay", key
            )
            assert found == [(*ack, epoch) for ack, epoch in sorted(claim.acks.items())]
            found = self.rows(
                'select x."offset", x.key, x.reason, x.attempts, x.crashes, x.replays from coordinator.dead_letters x '
                + where,
                key,
            )
            assert found == [
                (o, w.key, w.reason, w.attempts, w.crashes, w.replays) for o, w in sorted(claim.dead.items())
            ]
            found = self.rows(
                "select x.epoch, x.coordinator, x.offsets::text, extract(epoch from x.at - %s)::float8, x.alone "
                "from coordinator.crashes x where (x.group_id, x.topic_id, x.partition) = (%s, %s, %s)",
                ("2026-01-01 00:00:00+00", *key),
            )
            crashes = {
                row[0]: CrashRow(row[1], frozenset(o for lo, hi in from_text(row[2]) for o in range(lo, hi)), *row[3:])
                for row in found
            }
            assert crashes == claim.crashes
            self.seen["crash rows"] += len(crashes)

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
        wanted = self.model.resolve(me, claims)
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
        # Those of earlier histories may be among the dead.
        parsed = statement.parse(self.rows(statement.text, statement.parameters))
        found = {gone.member_id for gone in parsed} & self.model.coordinators.keys()
        assert found == set(self.model.reap(7200.0))
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


def plain(answer):
    """What both sides say; the text of a refusal is PostgreSQL's own."""
    return answer._replace(refused=sorted(answer.refused or ()), refusal=answer.refusal is not None)


def make_pair(dsn, connection, name, chance):
    topic_id = connection.execute(
        "select t.topic_id from coordinator.create_topic(%s, %s) t", (name, PARTITIONS)
    ).fetchone()[0]
    joined = groups.join_group(None, name, [name], "earliest", None)
    group_id = joined.parse(connection.execute(joined.text, joined.parameters).fetchall()).group_id
    model = FakeDatabase({topic_id: PARTITIONS}, {group_id: [topic_id]}, SQL_BUGS)
    pair = Pair(dsn, connection, name, topic_id, group_id, model, chance)
    connection.execute("update public.test_clock c set at = '2026-01-01 00:00:00+00'")
    for _ in range(2):
        pair.register()
    return pair


def test_model__random_histories__answers_what_postgres_answers(dsn):
    steps = [
        *(Pair.begin, Pair.publish, Pair.publish, Pair.publish, Pair.end, Pair.exchange, Pair.exchange, Pair.exchange),
        *(Pair.exchange, Pair.fetch, Pair.gap_pass, Pair.claim, Pair.release, Pair.resolve, Pair.lock, Pair.die),
        *(
            Pair.dispatch_due,
            Pair.fetch_retries,
            Pair.ack,
            Pair.replay,
            Pair.withdraw,
            Pair.pass_time,
            Pair.compare_tables,
            Pair.seek,
            Pair.skip,
        ),
    ]
    weights = [2, 2, 2, 2, 2, 3, 3, 3, 3, 2, 2, 3, 1, 2, 1, 1, 3, 3, 2, 1, 0.3, 2, 3, 0.7, 0.7]
    seen = Counter()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(CLOCK)
        for seed in range(FIRST_SEED, FIRST_SEED + HISTORIES):
            chance = Random(seed)
            pair = make_pair(dsn, connection, f"t{seed}", chance)
            history = []
            try:
                pair.claim()
                for step in chance.choices(steps, weights, k=STEPS):
                    history.append(step.__name__)
                    step(pair)
                pair.compare_tables()
            except Exception as error:
                raise AssertionError(f"seed {seed}, after {history}: {error}") from error
            finally:
                pair.close()
            seen.update(pair.seen)
    print(seen)
    cases = ("idle", "ok", "fenced", "busy", "stale", "fetched", "holders", "appeared", "released", "taken over")
    cases += (
        "resolved ok",
        "resolved fenced",
        "resolved busy",
        "parked",
        "due later",
        "crash rows",
        "replayed",
        "ack",
        "refused",
    )
    cases += tuple(f"hard {kind}" for kind in ("retry", "behind", "dead", "clear", "alone", "empty", "fold", "charged"))
    cases += ("seek back", "seek forth", "seek took back parked", "seek closed")
    cases += ("skip open", "skip parked", "skip KG003", "skip KG004")
    cases += ("ack StaleEpochError", "ack AlreadySettledError", "full", "gone")
    assert all(seen[case] > 0 for case in cases), f"hardly compared: {seen}"


def test_exchange__done_beyond_the_window__raises_the_window_with_the_committed_offset(dsn):
    """After a release `done` is kept and hwm is lowered, so done may lie above it."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(CLOCK)
        pair = make_pair(dsn, connection, "t", Random(1))
        key = PartitionKey(pair.group_id, pair.topic_id, 0)
        connection.execute("select from coordinator.publish_many('t', %s, p_partitions => %s)", ([b"x"] * 10, [0] * 10))

        def exchange(epoch, seq, hwm, settled, want):
            parameters = deliveries.settle_parameters(
                pair.coordinators[0], ClaimArrays.of([(key, epoch)]), [(seq, hwm)], [settled], [want], []
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


class Story:
    """One partition of a real database, and its one owner."""

    def __init__(self, dsn, connection):
        connection.execute(CLOCK)
        self.pair = make_pair(dsn, connection, "t", Random(1))
        self.connection = connection
        self.key = PartitionKey(self.pair.group_id, self.pair.topic_id, 0)
        connection.execute("select from coordinator.publish_many('t', %s, p_partitions => %s)", ([b"x"] * 10, [0] * 10))
        self.claim()

    def run(self, statement):
        return statement.parse(self.connection.execute(statement.text, statement.parameters).fetchall())

    def claim(self):
        self.owned = self.run(groups.claim(self.pair.coordinators[0], [self.key]))[0]
        self.seq, self.hwm = self.owned.seq, self.owned.committed
        return self.owned

    def exchange(self, *hard, want=0):
        claims, lines = ClaimArrays.of([(self.key, self.owned.epoch)]), [{"o": 1, **line} for line in hard]
        parameters = deliveries.settle_parameters(
            self.pair.coordinators[0], claims, [(self.seq, self.hwm)], [[]], [want], lines
        )
        answer = Settled(*self.connection.execute(deliveries.EXCHANGE, parameters).fetchone())
        assert answer.status == "ok"
        self.seq, self.hwm = answer.seq, answer.hwm

    def ack(self, offset):
        self.run(deliveries.ack(self.pair.coordinators[0], self.key, self.owned.epoch, [offset], [0]))

    def release(self):
        claims = ClaimArrays.of([(self.key, self.owned.epoch)])
        self.connection.execute(deliveries.RELEASE, deliveries.release_parameters(self.pair.coordinators[0], claims))

    def retries(self, column):
        return dict(self.connection.execute(f'select r."offset", r.{column} from coordinator.retries r').fetchall())

    def replayed(self):
        """Offset 0 died under a guard and was given back; the guard's acks row is still there."""
        self.exchange(want=10)
        dead = {"k": "dead", "offset": 0, "key": None, "reason": "rejected", "error": {"error": "e"}}
        self.exchange({**dead, "attempts": 1, "crashes": 0, "guard": True})
        self.connection.execute("select from coordinator.replay('t', 't', 0, array[0])")


@pytest.fixture
def story(dsn):
    with psycopg.connect(dsn, autocommit=True) as connection:
        made = Story(dsn, connection)
        yield made
        made.pair.close()


def test_claim__ack_of_a_transaction_before_the_release__is_folded(story):
    """I17, I18: otherwise a confirmed ack is lost with a plain release, and its effect comes twice."""
    story.exchange(want=10)
    story.ack(3)
    story.release()
    assert story.claim().done == ((3, 4),)


def test_claim__replayed_while_the_guard_of_its_death_is_there__keeps_it(story):
    """I4: otherwise the replayed message is lost. R17."""
    story.replayed()
    story.claim()
    assert story.retries("replays") == {0: 1}


def test_charge__replayed_while_the_guard_of_its_death_is_there__is_charged(story):
    story.replayed()
    claims = ClaimArrays.of([(story.key, story.owned.epoch)])
    due = deliveries.due_parameters(story.pair.coordinators[0], claims, [10])
    story.connection.execute(deliveries.DUE, due)
    story.connection.execute("update coordinator.coordinators c set lease_until = '-infinity'")
    story.run(groups.reap(7200.0))
    assert story.retries("crashes") == {0: 1}


def test_claim__head_acked_in_a_transaction_and_one_above_it_is_not_behind__wakes_the_next(story):
    """L1: 2 waits for 6 in the table, and 6 for 2 in the order of the key."""
    story.exchange(want=10)
    retry = {"k": "retry", "key": "k", "delay_s": 60, "running": False, "error": {"error": "e"}}
    story.exchange({**retry, "offset": 1}, {**retry, "offset": 6}, {"k": "behind", "key": "k", "offsets": [2]})
    story.ack(1)
    story.claim()
    assert story.retries("behind_key") == {2: False, 6: False}
