"""The invariants of a history, checked while it happens. A broken one raises AssertionError that begins with its number."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from support.fake_database import FakeDatabase

    from coordinator.core.loop import Engine
    from coordinator.core.partition import Partition
    from coordinator.model import Delivery, Message, PartitionKey


# Of an ack that a handler's transaction has committed, and of which nobody knows yet.
UNTOLD = 1 << 60


@dataclass
class ClaimLaws:
    """What is known of one claim.

    Attributes:
        worked: Offsets whose handler has finished, or that are dead letters.
        settled: The number of the progress with which an offset became settled in the tables. Known ones were told to a client.
        effects: Offsets that were acked in a transaction since they were given back last.
        replayed: How often an offset was given back to the group; those that were are outside of every order.
        attempts: The last attempt that a handler was told. charged: failures that are known to be written.
        not_before: When a parked message may start.
    """

    worked: set[int] = field(default_factory=set)
    effects: set[int] = field(default_factory=set)
    settled: dict[int, int] = field(default_factory=dict)
    replayed: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    attempts: dict[int, int] = field(default_factory=dict)
    charged: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    not_before: dict[int, float] = field(default_factory=dict)
    parked: set[int] = field(default_factory=set)
    checked: int = 0
    buried_count: int = 0
    known_seq: int = 0
    known_epoch: int = 0


class Laws:
    """Watches all coordinators and the tables of one history."""

    def __init__(self, database: FakeDatabase, ordering: str = "partition", max_crashes: int = 3) -> None:
        self.database = database
        self.ordering = ordering
        self.max_crashes = max_crashes
        self.claims: dict[PartitionKey, ClaimLaws] = {key: ClaimLaws() for key in database.claims}
        self.withdrawn = False
        self.starts = 0
        self.redeliveries = 0
        self.start_counts: dict[tuple[PartitionKey, int], int] = defaultdict(int)
        # With how many others a message was running when its process ended for the last time.
        self.neighbours: dict[tuple[PartitionKey, int], int] = {}
        self._newest: dict[tuple[PartitionKey, int], dict[int, Delivery]] = defaultdict(dict)
        self._accepted: dict[tuple[PartitionKey, int], set[int]] = defaultdict(set)
        self._read_at: dict[tuple[PartitionKey, int], dict[int, int]] = defaultdict(dict)
        self._unconfirmed: dict[Partition, list[tuple[int, int, str]]] = defaultdict(list)

    # ---- what a coordinator reads and starts

    def on_read(self, key: PartitionKey, epoch: int, offsets: Iterable[int], tick: int) -> None:
        """Messages were read at that tick, for the first time in this epoch or not."""
        read_at = self._read_at[key, epoch]
        for offset in offsets:
            read_at.setdefault(offset, tick)

    def on_start(self, batch: Sequence[Message], now_s: float) -> None:
        """Check messages that were handed over together."""
        by_owner: dict[Partition, list[Message]] = defaultdict(list)
        for message in batch:
            by_owner[message.delivery.owner].append(message)
        for partition, messages in by_owner.items():
            key, epoch = partition.key, messages[0].epoch
            started = self._newest[key, epoch]
            assert len({message.offset for message in messages}) == len(messages), f"I8: {key} starts a message twice"
            for message in messages:
                self._check_start(key, epoch, message, started, now_s)
            if self.ordering == "partition":
                self._check_partition_order(key, epoch, [message.offset for message in messages], started, now_s)
            elif self.ordering == "key":
                self._check_key_order(key, epoch, messages, started, now_s)
            if len(messages) > 1:
                failed = [m.offset for m in messages if m.delivery.facts is not None and m.delivery.facts.fails]
                assert not failed, f"R19: {key}@{failed} have failed and start in a batch of {len(messages)}"
            started.update((message.offset, message.delivery) for message in messages)

    def _check_start(
        self, key: PartitionKey, epoch: int, message: Message, started: dict[int, Delivery], now_s: float
    ) -> None:
        offset, attempt = message.offset, message.attempt
        claim, laws = self.database.claims[key], self.claims[key]
        self.starts += 1
        self.start_counts[key, offset] += 1
        # Clocks run alike here, so the self-lease ends before anybody can take over.
        assert epoch == claim.epoch, f"lease: {key}@{offset} starts in epoch {epoch}, and {claim.epoch} is in force"
        settled_seq = laws.settled.get(offset)
        assert settled_seq is None or settled_seq > laws.known_seq, (
            f"I5: {key}@{offset} starts in epoch {epoch}, known to be settled with {settled_seq}: {claim.newest}"
        )
        before = started.get(offset)
        if before is not None:
            self.redeliveries += 1
            assert not _live(before, now_s), f"I8: {key}@{offset} is in flight twice in epoch {epoch}"
        told = max(1 if self.withdrawn else laws.attempts.get(offset, 1), 1 + laws.charged[offset])
        assert attempt >= told, f"I11: {key}@{offset}: attempt {attempt}, after {told} at least"
        laws.attempts[offset] = attempt
        row = claim.retries.get(offset)
        parked = row is not None and row.dispatched == epoch
        assert parked or any(p.epoch == epoch and p.hwm > offset for p in reversed(claim.history)), (
            f"I9: {key}@{offset} starts in epoch {epoch} outside of every window that was committed in it"
        )
        not_before_s = laws.not_before.get(offset, 0.0)
        assert now_s >= not_before_s, f"I14: {key}@{offset} starts at {now_s}, and is due at {not_before_s}"
        assert offset in self.database.logs[key[1:]].rows, f"{key}@{offset} was never committed"

    def _check_partition_order(
        self, key: PartitionKey, epoch: int, offsets: list[int], started: dict[int, Delivery], now_s: float
    ) -> None:
        replayed = self.claims[key].replayed
        offsets = [offset for offset in offsets if offset not in replayed]
        if not offsets:
            return
        assert offsets == sorted(offsets), f"I10: {key} hands over {offsets}"
        others = {o: d for o, d in started.items() if o not in offsets and o not in replayed}
        for other, delivery in others.items():
            assert not _live(delivery, now_s), f"I10: {key} starts {offsets} while {other} is in flight"
            assert other > offsets[-1] or self._is_settled(key, epoch, other), (
                f"I10: {key} starts {offsets} before {other} is settled"
            )
        fresh = [offset for offset in offsets if offset not in started]
        assert not fresh or fresh[0] > max(others, default=-1), f"I10: {key} starts {offsets} after {max(others)}"

    def _check_key_order(
        self, key: PartitionKey, epoch: int, messages: list[Message], started: dict[int, Delivery], now_s: float
    ) -> None:
        log, replayed, read_at = self.database.logs[key[1:]], self.claims[key].replayed, self._read_at[key, epoch]
        names = [message.key for message in messages if message.key is not None]
        assert len(names) == len(set(names)), f"I10: {key} hands over one key twice: {names}"
        for message in messages:
            name, offset = message.key, message.offset
            if name is None:
                continue
            assert name == log.rows[offset], f"I12: {key}@{offset} is delivered with the key {name!r}"
            for other in log.by_key[name]:
                if other == offset:
                    continue
                delivery = started.get(other)
                assert delivery is None or not _live(delivery, now_s), (
                    f"I10: {key}@{offset} starts while {other} of the same key is in flight"
                )
                if other > offset or offset in replayed or other in replayed or other not in log.rows:
                    continue
                visible = log.shown[other] <= read_at[offset]
                assert not visible or self._is_settled(key, epoch, other), (
                    f"I10: {key}@{offset} starts before {other} of the same key is settled"
                )

    def _is_settled(self, key: PartitionKey, epoch: int, offset: int) -> bool:
        return offset in self._accepted[key, epoch] or offset in self.claims[key].settled

    # ---- what handlers say

    def on_ack(self, partition: Partition, delivery: Delivery, count_before: int) -> None:
        """A handler's ack was taken; it counts as confirmed once `saved_count` has reached what it is now."""
        if partition.settled_count > count_before:
            replays = delivery.facts.replays if delivery.facts is not None else 0
            assert replays >= self.claims[partition.key].replayed.get(delivery.offset, 0), (
                f"I12: a run of {partition.key}@{delivery.offset} from before its replay settles that"
            )
            self._accept(partition, delivery.offset)
            self._unconfirmed[partition].append((partition.settled_count, delivery.offset, "ack"))
            self.on_saved(partition)

    def on_fail(self, partition: Partition, delivery: Delivery, reason: str | None) -> None:
        """A failure was taken: of a handler, or of a deadline."""
        if reason is not None:
            self._accepted[partition.key, partition.epoch].add(delivery.offset)
        self._unconfirmed[partition].append((partition.settled_count, delivery.offset, reason or "retry"))

    def on_acks_in_transaction(self, key: PartitionKey, offsets: Sequence[int]) -> None:
        """A handler's transaction has committed in the tables."""
        laws = self.claims[key]
        for offset in offsets:
            assert offset not in laws.settled, f"I18: {key}@{offset} has two effects"
            laws.effects.add(offset)
            laws.worked.add(offset)
            laws.settled[offset] = UNTOLD

    def on_told(self, key: PartitionKey, offset: int) -> None:
        """The handler's COMMIT has returned."""
        if offset in self.claims[key].settled:
            self.claims[key].settled[offset] = 0

    def _accept(self, partition: Partition, offset: int) -> None:
        self.claims[partition.key].worked.add(offset)
        self._accepted[partition.key, partition.epoch].add(offset)

    def on_replayed(self, key: PartitionKey, offset: int) -> None:
        """A dead letter was given back: it begins anew."""
        laws = self.claims[key]
        laws.replayed[offset] += 1
        laws.parked.add(offset)
        laws.worked.discard(offset)
        laws.effects.discard(offset)
        for known in (laws.settled, laws.attempts, laws.charged, laws.not_before):
            known.pop(offset, None)
        for (claim, _), accepted in self._accepted.items():
            if claim == key:
                accepted.discard(offset)
        for partition, waiting in self._unconfirmed.items():
            if partition.key == key:
                waiting[:] = [entry for entry in waiting if entry[1] != offset]

    def on_withdrawn(self) -> None:
        """A charge was withdrawn: its attempts are not told any more, but by who has read it before; and its pauses are over."""
        self.withdrawn = True
        for key, laws in self.claims.items():
            for offset, row in self.database.claims[key].retries.items():
                if offset in laws.not_before:
                    laws.not_before[offset] = min(laws.not_before[offset], row.next_at_s)

    def on_end(self, running: Sequence[tuple[PartitionKey, int]]) -> None:
        """A process has ended, or was declared dead, while these were running in it."""
        for key, offset in running:
            self.neighbours[key, offset] = len(running) - 1

    # ---- what is written and told

    def on_saved(self, partition: Partition) -> None:
        """I17: what a coordinator believes to be durable is."""
        waiting = self._unconfirmed.get(partition)
        if not waiting:
            return
        claim, laws = self.database.claims[partition.key], self.claims[partition.key]
        for count, offset, what in waiting:
            if count > partition.saved_count:
                continue
            if what == "retry":
                laws.charged[offset] += 1
                assert offset in claim.retries or offset in laws.settled, f"I17: {partition.key}@{offset} is not parked"
            elif what == "ack" or (offset not in partition.failing and offset not in claim.retries):
                # A dead letter that was refused is kept and tried again, or, if that answer was lost too, comes once more.
                assert offset in laws.settled, (
                    f"I17: the {what} of {partition.key}@{offset} counts as saved, and the tables say {claim.newest}"
                )
        self._unconfirmed[partition] = [entry for entry in waiting if entry[0] > partition.saved_count]

    def on_known(self, key: PartitionKey, seq: int) -> None:
        """A coordinator was told that the progress of this number is committed."""
        laws = self.claims[key]
        laws.known_seq = max(laws.known_seq, seq)

    def on_committed(self) -> None:
        """I3, I4, I12, I13: what became settled was finished by a handler, is a dead letter, or nobody can commit it."""
        for key, claim in self.database.claims.items():
            laws, newest = self.claims[key], claim.newest
            log = self.database.logs[key[1:]]
            for offset, dead in claim.buried[laws.buried_count :]:
                assert dead.key == log.rows[offset], f"I12: {key}@{offset} is buried with another key"
                assert offset not in laws.effects, f"I18: {key}@{offset} is a dead letter and has effects"
                laws.worked.add(offset)
                if dead.reason == "crash":
                    assert self.neighbours.get((key, offset), 0) == 0, f"I13: {key}@{offset} had neighbours"
            laws.buried_count = len(claim.buried)
            transactional = {offset for offset, _ in claim.acks}
            gone = [offset for offset in laws.parked if offset not in claim.retries]
            for offset in [*range(laws.checked, newest.committed), *newest.done, *gone]:
                if laws.settled.get(offset, UNTOLD) != UNTOLD or offset in claim.retries or offset in log.burnt:
                    continue
                if offset in laws.settled and offset in transactional:
                    continue
                assert offset in laws.worked, f"I3: {key}@{offset} is neither finished nor burnt: {newest}"
                laws.settled[offset] = newest.seq
                laws.not_before.pop(offset, None)
            laws.checked = newest.committed
            laws.parked = set(claim.retries)
            for offset, row in claim.retries.items():
                if row.dispatched is None and not row.behind:
                    laws.not_before[offset] = row.next_at_s
                elif row.behind:
                    laws.not_before.pop(offset, None)
            for offset in claim.dead:
                assert offset in laws.settled, f"I12: {key}@{offset} is a dead letter and not settled"
                assert offset not in claim.retries, f"I12: {key}@{offset} is a dead letter and parked"

    def on_engine(self, engine: Engine) -> None:
        """I15, for everything that an engine holds."""
        limits = engine.limits
        assert len(engine.heap) <= 2 * engine.heap.live + 1024, "I15: the heap"
        assert engine.heap.live == sum(len(p.in_flight) for p in engine.partitions.values()), "I15: in flight"
        assert engine.heap.live <= limits.max_in_flight, "I15: in flight"
        unwritten_counts = []
        for partition in engine.partitions.values():
            unwritten_counts.append(sum(failing.refused is None for failing in partition.failing.values()))
            assert partition.unwritten_count == unwritten_counts[-1], f"I15: {partition.key} failing"
        assert engine.failing_count == sum(unwritten_counts), "I15: failing"
        for partition in engine.partitions.values():
            held = len(partition.ready) + len(partition.in_flight)
            # What was open may appear all at once, where it is not waited for.
            most = 2 * limits.max_window + (0 if partition.subscription.one_at_a_time else partition.window.max_missing)
            assert held <= most + 32, f"I15: {partition.key} holds {held} messages"
            missing = partition.gaps.size
            assert missing <= most + partition.window.max_waiting, f"I15: {partition.key} has {missing} gaps"
            waiting = partition.lanes.waiting_count
            assert waiting == len(list(partition.lanes.rows())), f"I15: {partition.key} miscounts its lanes"
            assert waiting <= partition.window.max_waiting + limits.max_window + len(partition.parked), "I15: lanes"
            assert len(partition.parked) <= limits.max_parked + 6 * limits.max_window, f"I15: {partition.key} parked"
            assert partition.holes <= limits.max_holes + limits.max_window + 1, f"I15: {partition.key} holes"
            ready = [row.offset for row in partition.ready]
            assert ready == sorted(set(ready)), f"I10: {partition.key} is to start {ready}"
            places = [*ready, *(r.offset for r in partition.urgent), *(r.offset for r in partition.lanes.rows())]
            places += [*partition.in_flight, *partition.failing, *(r.offset for r in partition.ahead)]
            twice = {offset for offset in places if places.count(offset) > 1} if len(set(places)) < len(places) else ()
            assert not twice, f"I8: {partition.key} holds {twice} twice"


def _live(delivery: Delivery, now_s: float) -> bool:
    return delivery.live and delivery.deadline_s > now_s
