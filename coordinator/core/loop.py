"""The engine of one consumer process: facts in, commands out. No I/O, no clock, no threads; callers serialise calls.

A shell asks `next_command`, carries it out, and reports by `on_exchanged`, `on_failed` or `on_resolved`. Handlers' threads
or tasks ask `take` and report by `ack` or `nack`. Everything of all groups of the process goes through one engine, because
one exchange serves all claims and one heap holds all deadlines.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count

from coordinator.core.inflight import InFlight
from coordinator.core.partition import Partition
from coordinator.core.ranges import Range
from coordinator.core.window import Window
from coordinator.errors import StaleEpochError
from coordinator.model import (
    Claim,
    Delivery,
    GapEvidence,
    Message,
    PartitionKey,
    Resolved,
    Row,
    Settled,
    Settler,
    Source,
)

# While the shell carries out a command, -infinity: it asks for the next one anyway, so nothing needs to wake it.
_NOT_WAITING = float("-inf")


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds and times of an engine; seconds are monotonic.

    Attributes:
        visibility_timeout_s: From a hand-over to the moment when an unsettled delivery is taken back.
        max_window: Messages read ahead per partition.
        max_holes: Runs of unresolved gaps per partition; at the bound it stops fetching.
        linger_s: How long an ack may wait for company before an exchange is made for it alone.
        poll_min_s, poll_max_s: Polling starts at the first after activity and doubles up to the second.
        gap_poll_max_s: The longest pause between two passes over unresolved gaps.
    """

    visibility_timeout_s: float = 30.0
    max_window: int = 500
    max_holes: int = 256
    linger_s: float = 0.01
    poll_min_s: float = 0.01
    poll_max_s: float = 1.0
    gap_poll_min_s: float = 0.002
    gap_poll_max_s: float = 0.03


@dataclass(slots=True, eq=False)
class Subscription:
    """One group's reading of one topic in this process; `runnable` holds partitions from which a message may start."""

    group: str
    group_id: int
    topic: str
    topic_id: int
    settler: Settler | None
    runnable: deque[Partition]


@dataclass(frozen=True, slots=True)
class Exchange:
    """Command: one round trip. Lists that go together are parallel.

    Attributes:
        partitions, settled, wants: What is written, for all claims.
        settled_counts: What `on_saved` is to be told.
        fetching: Claims whose windows are read behind the commit; empty when nothing is expected.
        gaps: Claims with unresolved gaps, and what was asked of each.
        releases: Claims to give back in the same transaction.
    """

    partitions: Sequence[Partition]
    settled: Sequence[Sequence[Range]]
    wants: Sequence[int]
    settled_counts: Sequence[int]
    fetching: Sequence[Partition]
    gaps: Sequence[tuple[Partition, Sequence[Range]]]
    releases: Sequence[Partition]


@dataclass(frozen=True, slots=True)
class Resolve:
    """Command: read the newest progress of these claims under the fence, after an unknown outcome or a reconnect."""

    partitions: Sequence[Partition]


@dataclass(frozen=True, slots=True)
class Wait:
    """Command: nothing to do until then, unless something is reported before."""

    until_s: float


@dataclass(slots=True)
class Changes:
    """What a report brought: claims that were lost or released, and deliveries that were taken back."""

    lost: list[Partition] = field(default_factory=list)
    released: list[Partition] = field(default_factory=list)


class Engine:
    """All claims, windows and deliveries of one coordinator."""

    def __init__(self, limits: Limits, wake: Callable[[], None]) -> None:
        """`wake` tells the shell that `next_command` may have something earlier than the last Wait said."""
        self.limits = limits
        self.heap = InFlight()
        self.partitions: dict[PartitionKey, Partition] = {}
        self.subscriptions: dict[tuple[int, int], Subscription] = {}
        self.lease_until_s = 0.0
        self.draining = False
        self._wake = wake
        self._numbers = count(1)
        self._settled_since_s: float | None = None
        self._flush = False
        self._expect = False
        self._poll_s = limits.poll_min_s
        self._poll_at_s = 0.0
        self._gap_poll_s = limits.gap_poll_min_s
        self._gap_poll_at_s = 0.0
        self._waiting_until_s = _NOT_WAITING
        self.delivered_count = 0
        self.redelivered_count = 0
        self.exchange_count = 0
        self.stale_count = 0

    # ---- ownership

    def subscribe(self, subscription: Subscription) -> None:
        self.subscriptions[subscription.group_id, subscription.topic_id] = subscription

    def on_claimed(self, claim: Claim, now_s: float) -> Partition:
        """A claim was taken: everything that was remembered of the partition is void."""
        old = self.partitions.get(claim.key)
        if old is not None:
            self._drop(old)
        subscription = self.subscriptions[claim.key.group_id, claim.key.topic_id]
        source = Source(subscription.group, subscription.topic, claim.key.partition, claim.epoch, subscription.settler)
        partition = Partition(claim, source, subscription, Window(self.limits.max_window))
        self.partitions[claim.key] = partition
        self.expect(now_s)
        return partition

    def revoke(self, keys: Iterable[PartitionKey]) -> None:
        """Stop claims: nothing starts any more, and each is released with the exchange after its last settlement."""
        for key in keys:
            partition = self.partitions.get(key)
            if partition is not None and not partition.revoking:
                partition.revoking = True
                partition.ready.clear()
        self._poke(0.0)

    def abandon(self, subscriptions: Iterable[Subscription]) -> int:
        """Give back what is in flight at once, uncharged, and release the claims; returns how many deliveries that were."""
        mine = set(map(id, subscriptions))
        count_ = 0
        for partition in self.partitions.values():
            if id(partition.subscription) in mine:
                count_ += len(partition.in_flight)
                for delivery in partition.in_flight.values():
                    self.heap.settle(delivery)
                partition.in_flight.clear()
        self.revoke([key for key, p in self.partitions.items() if id(p.subscription) in mine])
        return count_

    def drop(self, keys: Iterable[PartitionKey]) -> list[Partition]:
        """Forget claims that are somebody else's by now."""
        dropped = [self.partitions[key] for key in keys if key in self.partitions]
        for partition in dropped:
            self._drop(partition)
        return dropped

    def drain(self) -> None:
        """Start nothing any more, and release everything as it becomes free."""
        self.draining = True
        self.revoke(list(self.partitions))

    @property
    def idle(self) -> bool:
        """Every claim is read to V, nothing is missing, ready, in flight or unsaved."""
        return all(
            partition.high < partition.hwm == partition.position
            and not (partition.ready or partition.in_flight or partition.gaps or partition.holds_unsaved)
            and not partition.uncertain
            for partition in self.partitions.values()
        )

    def on_lease(self, until_s: float) -> None:
        """A heartbeat was answered: the self-lease ends then."""
        self.lease_until_s = until_s

    # ---- deliveries

    def take(self, subscriptions: Sequence[Subscription], max_count: int, now_s: float) -> list[Message]:
        """Hand over messages that may start now; at most one partition's run of them at a time, fairly across partitions.

        Nothing starts once the lease may have run out. One call hands over consecutive messages of a partition, to one
        handler; the next of that partition start when all of them are settled.
        """
        taken: list[Message] = []
        if now_s >= self.lease_until_s or self.draining:
            return taken
        for subscription in subscriptions:
            runnable = subscription.runnable
            while runnable and len(taken) < max_count:
                partition = runnable.popleft()
                partition.queued = False
                self._start(partition, max_count - len(taken), now_s, taken)
        return taken

    def ack(self, delivery: Delivery, now_s: float) -> Partition:
        """Settle a message; also by an earlier delivery of it, as long as it is unsettled: the work is done.

        Raises:
            StaleEpochError: If the claim is not this coordinator's any more, or was claimed again.
        """
        partition = self._held(delivery)
        if not self.heap.settle(delivery):
            current = partition.in_flight.get(delivery.offset)
            if current is not None:
                self.heap.settle(current)
            elif not self._take_from_ready(partition, delivery.offset):
                return partition
        partition.in_flight.pop(delivery.offset, None)
        if partition.starts:
            partition.starts.pop(delivery.offset, None)
        partition.settled.append(delivery.offset)
        partition.settled_count += 1
        if self._settled_since_s is None:
            self._settled_since_s = now_s
            self._poke(now_s + self.limits.linger_s)
        if not partition.in_flight:
            self._queue(partition)
        return partition

    def nack(self, delivery: Delivery) -> None:
        """Give a live delivery back to the head of the queue; ignored when it is not live any more.

        Raises:
            StaleEpochError: If the claim is not this coordinator's any more.
        """
        partition = self._held(delivery)
        if self.heap.settle(delivery):
            self._give_back(partition, [delivery])

    def extend(self, delivery: Delivery, deadline_s: float) -> bool:
        """Move a live delivery's deadline; False, and nothing happens, when it is not live any more.

        Raises:
            StaleEpochError: If the claim is not this coordinator's any more.
        """
        self._held(delivery)
        extended = self.heap.extend(delivery, deadline_s)
        if extended:
            self._poke(deadline_s)
        return extended

    def flush(self) -> None:
        """Let the next command write what is settled, without waiting for company."""
        self._flush = True
        self._poke(0.0)

    def expect(self, now_s: float) -> None:
        """Something was published, or may have been: look at once."""
        self._expect = True
        self._poll_s = self.limits.poll_min_s
        self._poll_at_s = now_s + self._poll_s
        self._poke(0.0)

    # ---- commands

    def next_command(self, now_s: float) -> Exchange | Resolve | Wait:
        """Say what the shell should do now. Deadlines that have passed are dealt with first."""
        self._waiting_until_s = _NOT_WAITING
        self._take_back(now_s)
        uncertain = [partition for partition in self.partitions.values() if partition.uncertain]
        if uncertain:
            return Resolve(uncertain)
        exchange = self._exchange(now_s)
        if exchange is not None:
            return exchange
        until_s = self._poll_at_s if self.partitions else float("inf")
        if self._settled_since_s is not None:
            until_s = min(until_s, self._settled_since_s + self.limits.linger_s)
        if any(partition.gaps for partition in self.partitions.values()):
            until_s = min(until_s, self._gap_poll_at_s)
        deadline_s = self.heap.next_deadline_s()
        if deadline_s is not None:
            until_s = min(until_s, deadline_s)
        self._waiting_until_s = until_s
        return Wait(until_s)

    def on_exchanged(
        self,
        exchange: Exchange,
        settled: Sequence[Settled],
        released: int,
        rows: Sequence[Row],
        evidence: dict[int, GapEvidence],
        now_s: float,
    ) -> Changes:
        """Take in the answer of an exchange. `rows[i].ord` counts `exchange.fetching` from 1, evidence its `gaps`."""
        changes = Changes()
        self.exchange_count += 1
        gaps_before = sum(len(partition.gaps) for partition in exchange.fetching)
        for partition, answer, settled_count in zip(exchange.partitions, settled, exchange.settled_counts, strict=True):
            self._on_settled(partition, answer, settled_count, changes, now_s)
        for place, (partition, asked) in enumerate(exchange.gaps, 1):
            self._on_evidence(partition, asked, evidence.get(place))
        self._on_rows(exchange.fetching, rows)
        self._on_released(exchange.releases, released, changes)
        active = bool(rows) or any(partition.position < partition.hwm for partition in self.partitions.values())
        self._poll_s = self.limits.poll_min_s if active else min(2 * self._poll_s, self.limits.poll_max_s)
        self._poll_at_s = now_s + self._poll_s
        self._plan_gap_pass(exchange, evidence, gaps_before, now_s)
        return changes

    def on_failed(self, exchange: Exchange) -> None:
        """An exchange failed with an unknown outcome: nothing of its claims starts before it is resolved."""
        for partition in exchange.partitions:
            if not partition.lost:
                partition.uncertain = True

    def on_reconnected(self) -> None:
        """The connection is a new one: evidence is void, and every claim has to be looked at again."""
        for partition in self.partitions.values():
            partition.gaps.void()
            partition.uncertain = True
        self._poke(0.0)

    def on_resolved(self, resolve: Resolve, answers: Sequence[Resolved], now_s: float) -> Changes:
        """Take in the newest progress of uncertain claims.

        Our `seq` is there: applied. The one before: not applied, to be written again. Anything older than what a COMMIT has
        confirmed means another history (a standby that lacked it was promoted): then all memory of the claim is void.
        """
        changes = Changes()
        for partition, answer in zip(resolve.partitions, answers, strict=True):
            if partition.lost:
                continue
            applied = answer.seq == partition.seq + 1 and partition.sent is not None
            if answer.status != "ok" or not (applied or answer.seq == partition.seq):
                self._drop(partition)
                changes.lost.append(partition)
                continue
            if applied:
                partition.on_saved(
                    answer.seq, answer.committed, answer.hwm, partition.settled_count - len(partition.settled)
                )
            else:
                partition.on_not_saved()
            partition.recover(answer.seq, answer.committed, answer.hwm, answer.done)
        self._settled_since_s = now_s if any(p.holds_unsaved for p in self.partitions.values()) else None
        self._expect = True
        return changes

    # ---- inside

    def _held(self, delivery: Delivery) -> Partition:
        partition: Partition = delivery.owner
        if partition.lost:
            self.stale_count += 1
            current = self.partitions.get(partition.key)
            raise StaleEpochError(
                f"{partition.source.topic}/{partition.key.partition} of group {partition.source.group} is not owned under "
                f"epoch {partition.epoch} any more; the message will be, or was, handled by its owner",
                held=partition.epoch,
                current=current.epoch if current is not None else None,
            )
        return partition

    def _start(self, partition: Partition, max_count: int, now_s: float, taken: list[Message]) -> None:
        if not self._may_start(partition):
            return
        stable = partition.gaps.first
        ready = partition.ready
        source = partition.source
        deadline_s = now_s + self.limits.visibility_timeout_s
        started = 0
        while ready and started < max_count:
            row = ready[0]
            offset = row[1]
            if stable is not None and offset > stable:
                break
            ready.popleft()
            attempt = 1 + partition.starts[offset] if offset in partition.starts else 1
            delivery = Delivery(partition, row, offset, next(self._numbers), attempt, deadline_s)
            partition.in_flight[offset] = delivery
            self.heap.push(delivery)
            taken.append(Message(row, source, delivery))
            started += 1
        self.delivered_count += started
        partition.window.on_started(started, now_s)
        more = partition.high >= partition.hwm
        if not ready and not more:
            partition.window.on_idle()
        self._poke(now_s if more and 2 * len(ready) <= partition.window.size else deadline_s)

    def _may_start(self, partition: Partition) -> bool:
        if not partition.ready or partition.in_flight or partition.uncertain or partition.revoking or partition.lost:
            return False
        stable = partition.gaps.first
        return stable is None or partition.ready[0][1] < stable

    def _queue(self, partition: Partition) -> None:
        if not partition.queued and self._may_start(partition):
            partition.queued = True
            subscription = partition.subscription
            assert isinstance(subscription, Subscription)
            subscription.runnable.append(partition)

    def _poke(self, at_s: float) -> None:
        """Wake the shell if it waits for something later than this."""
        if at_s < self._waiting_until_s:
            self._waiting_until_s = at_s
            self._wake()

    def _plan_gap_pass(
        self, exchange: Exchange, evidence: dict[int, GapEvidence], gaps_before: int, now_s: float
    ) -> None:
        """The first pass over new gaps at once, then ever more rarely, as long as nothing appears."""
        if sum(len(partition.gaps) for partition in exchange.fetching) > gaps_before:
            self._gap_poll_s = self.limits.gap_poll_min_s
            self._gap_poll_at_s = now_s
        elif exchange.gaps:
            appeared = any(entry.rows for entry in evidence.values())
            doubled_s = min(2 * self._gap_poll_s, self.limits.gap_poll_max_s)
            self._gap_poll_s = self.limits.gap_poll_min_s if appeared else doubled_s
            self._gap_poll_at_s = now_s + self._gap_poll_s

    def _take_from_ready(self, partition: Partition, offset: int) -> bool:
        for place, row in enumerate(partition.ready):
            if row[1] == offset:
                del partition.ready[place]
                return True
        return False

    def _take_back(self, now_s: float) -> None:
        due = self.heap.pop_due(now_s)
        by_partition: dict[int, tuple[Partition, list[Delivery]]] = {}
        for delivery in due:
            by_partition.setdefault(id(delivery.owner), (delivery.owner, []))[1].append(delivery)
        for partition, deliveries in by_partition.values():
            self._give_back(partition, deliveries)

    def _give_back(self, partition: Partition, deliveries: Sequence[Delivery]) -> None:
        self.redelivered_count += len(partition.give_back(deliveries))
        self._queue(partition)

    def _exchange(self, now_s: float) -> Exchange | None:
        partitions = list(self.partitions.values())
        if not partitions:
            return None
        wants = [partition.want(self.limits.max_holes) for partition in partitions]
        linger_over = self._settled_since_s is not None and now_s >= self._settled_since_s + self.limits.linger_s
        releases = [partition for partition in partitions if partition.revoking and not partition.in_flight]
        gap_due = now_s >= self._gap_poll_at_s
        gapped = [partition for partition in partitions if partition.gaps] if gap_due else []
        polls = now_s >= self._poll_at_s
        known = any(
            partition.position < partition.hwm or (want > 0 and partition.high >= partition.hwm)
            for partition, want in zip(partitions, wants, strict=True)
        )
        if not (self._flush or self._expect or linger_over or releases or gapped or polls or known):
            return None
        expects = self._expect or known or bool(gapped)
        self._flush = self._expect = False
        self._settled_since_s = None
        fetching = [
            partition
            for partition, want in zip(partitions, wants, strict=True)
            if partition.position < partition.hwm or (expects and want > 0)
        ]
        return Exchange(
            partitions,
            [partition.next_settled() for partition in partitions],
            wants,
            [partition.settled_count for partition in partitions],
            fetching,
            [(partition, partition.gaps.ranges()) for partition in gapped],
            releases,
        )

    def _on_settled(
        self, partition: Partition, answer: Settled, settled_count: int, changes: Changes, now_s: float
    ) -> None:
        if partition.lost:
            return
        partition.high = answer.high
        if answer.status == "ok":
            assert answer.seq is not None
            assert answer.committed is not None
            assert answer.hwm is not None
            partition.on_saved(answer.seq, answer.committed, answer.hwm, settled_count)
        elif answer.status == "idle":
            partition.sent = None
        elif answer.status == "busy":
            partition.on_not_saved()
            self._settled_since_s = now_s
        elif answer.status == "stale":
            partition.uncertain = True
        else:
            self._drop(partition)
            changes.lost.append(partition)

    def _on_rows(self, fetching: Sequence[Partition], rows: Sequence[Row]) -> None:
        runs: list[list[Row]] = [[] for _ in fetching]
        for row in rows:
            runs[row[0] - 1].append(row)
        for partition, run in zip(fetching, runs, strict=True):
            if not partition.lost and not partition.uncertain:
                partition.on_read(run)
                if partition.revoking:
                    partition.ready.clear()
                self._queue(partition)

    def _on_evidence(self, partition: Partition, asked: Sequence[Range], evidence: GapEvidence | None) -> None:
        if evidence is None or partition.lost or partition.uncertain:
            return
        burnt = partition.gaps.on_pass(asked, evidence.high, evidence.holders, [row[1] for row in evidence.rows])
        partition.unsent.extend(burnt)
        if burnt:
            self._flush = True
        partition.on_appeared(evidence.rows)
        if partition.revoking:
            partition.ready.clear()
        self._queue(partition)

    def _on_released(self, releases: Sequence[Partition], released: int, changes: Changes) -> None:
        held = [partition for partition in releases if not partition.lost]
        if released == len(releases):
            for partition in held:
                self._drop(partition)
            changes.released.extend(held)
        else:
            # Somebody held a row, or took it over; the next resolve tells which.
            for partition in held:
                partition.uncertain = True

    def _drop(self, partition: Partition) -> None:
        partition.lost = True
        for delivery in partition.in_flight.values():
            self.heap.settle(delivery)
        partition.in_flight.clear()
        partition.ready.clear()
        if self.partitions.get(partition.key) is partition:
            del self.partitions[partition.key]
