"""The invariants of a history, checked while it happens. A broken one raises AssertionError that begins with its number."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from support.fake_database import FakeDatabase, Progress

    from coordinator.core.loop import Engine
    from coordinator.core.partition import Partition
    from coordinator.model import Delivery, Message, PartitionKey


class Laws:
    """Watches all coordinators and the tables. `partition` order is assumed."""

    def __init__(self, database: FakeDatabase) -> None:
        self.database = database
        self.worked: dict[PartitionKey, set[int]] = defaultdict(set)
        self.starts = 0
        self.redeliveries = 0
        self._checked: dict[PartitionKey, int] = defaultdict(int)
        self._known: dict[PartitionKey, Progress] = {}
        self._newest: dict[tuple[PartitionKey, int], dict[int, Delivery]] = defaultdict(dict)
        self._unconfirmed: dict[Partition, list[tuple[int, int]]] = defaultdict(list)
        self._settled: dict[tuple[PartitionKey, int], set[int]] = defaultdict(set)

    def on_start(self, batch: Sequence[Message], now_s: float) -> None:
        """Check messages that were handed over together: I5, I8, I9 and I10."""
        by_owner: dict[Partition, list[Message]] = defaultdict(list)
        for message in batch:
            by_owner[message.delivery.owner].append(message)
        for partition, messages in by_owner.items():
            key, epoch = partition.key, messages[0].epoch
            started, settled = self._newest[key, epoch], self._settled[key, epoch]
            offsets = [message.offset for message in messages]
            assert offsets == sorted(set(offsets)), f"I10: {key} hands over {offsets}"
            for message in messages:
                self._check_start(key, epoch, message, started, now_s)
            for other, delivery in started.items():
                if other in offsets:
                    continue
                assert not _live(delivery, now_s), f"I10: {key} starts {offsets} while {other} is in flight"
                assert other in settled or other > offsets[-1], f"I10: {key} starts {offsets} before {other} is settled"
            fresh = [offset for offset in offsets if offset not in started]
            assert not fresh or fresh[0] > max(started, default=-1), f"I10: {key} starts {offsets} after {max(started)}"
            started.update((message.offset, message.delivery) for message in messages)

    def _check_start(
        self, key: PartitionKey, epoch: int, message: Message, started: dict[int, Delivery], now_s: float
    ) -> None:
        offset, attempt = message.offset, message.attempt
        self.starts += 1
        known = self._known.get(key)
        if known is not None and epoch >= known.epoch:
            assert offset >= known.committed, (
                f"I5: {key}@{offset} starts in epoch {epoch}, known to be settled: {known}"
            )
            assert offset not in known.done, f"I5: {key}@{offset} starts in epoch {epoch}, known to be settled: {known}"
        before = started.get(offset)
        if before is not None:
            self.redeliveries += 1
            assert not _live(before, now_s), f"I8: {key}@{offset} is in flight twice in epoch {epoch}"
            assert attempt > before.attempt, f"I11: {key}@{offset}: attempt {attempt} after {before.attempt}"
        history = self.database.claims[key].history
        assert any(p.epoch == epoch and p.hwm > offset for p in reversed(history)), (
            f"I9: {key}@{offset} starts in epoch {epoch} outside of every window that was committed in it"
        )
        # Clocks run alike here, so the self-lease ends before anybody can take over.
        now_epoch = self.database.claims[key].epoch
        assert epoch == now_epoch, f"lease: {key}@{offset} starts in epoch {epoch}, and {now_epoch} is in force"
        assert offset in self.database.logs[key[1:]].rows, f"{key}@{offset} was never committed"

    def on_ack(self, partition: Partition, delivery: Delivery) -> None:
        """A handler's ack was accepted; it counts as confirmed once `saved_count` has reached what it is now."""
        self.worked[partition.key].add(delivery.offset)
        self._settled[partition.key, partition.epoch].add(delivery.offset)
        self._unconfirmed[partition].append((partition.settled_count, delivery.offset))
        self.on_saved(partition)

    def on_saved(self, partition: Partition) -> None:
        """I17: what a coordinator believes to be durable is."""
        waiting = self._unconfirmed.get(partition)
        if not waiting:
            return
        newest = self.database.claims[partition.key].newest
        for count, offset in waiting:
            if count <= partition.saved_count:
                assert offset < newest.committed or offset in newest.done, (
                    f"I17: the ack of {partition.key}@{offset} counts as saved, and the tables say {newest}"
                )
        self._unconfirmed[partition] = [entry for entry in waiting if entry[0] > partition.saved_count]

    def on_known(self, key: PartitionKey, seq: int) -> None:
        """A coordinator was told that the progress of this number is committed."""
        progress = self.database.claims[key].history[seq]
        known = self._known.get(key)
        if known is None or known.seq < seq:
            self._known[key] = progress

    def on_committed(self) -> None:
        """I3 and I4: below every committed offset, and in `done`, is only what a handler has finished or nobody can commit."""
        for key, claim in self.database.claims.items():
            newest = claim.newest
            burnt, worked = self.database.logs[key[1:]].burnt, self.worked[key]
            for offset in [*range(self._checked[key], newest.committed), *newest.done]:
                assert offset in worked or offset in burnt, f"I3: {key}@{offset} is neither settled nor burnt: {newest}"
            self._checked[key] = newest.committed

    def on_engine(self, engine: Engine) -> None:
        """I15, for everything that an engine holds."""
        assert len(engine.heap) <= 2 * engine.heap.live + 1024, "I15: the heap"
        assert engine.heap.live == sum(len(p.in_flight) for p in engine.partitions.values()), "I15: in flight"
        for partition in engine.partitions.values():
            held = len(partition.ready) + len(partition.in_flight)
            assert held <= 2 * engine.limits.max_window + 32, f"I15: {partition.key} holds {held} messages"
            ready = [row.offset for row in partition.ready]
            assert ready == sorted(set(ready)), f"I10: {partition.key} is to start {ready}"
            assert partition.in_flight.keys().isdisjoint(ready), f"I8: {partition.key} holds a message twice"


def _live(delivery: Delivery, now_s: float) -> bool:
    return delivery.live and delivery.deadline_s > now_s
