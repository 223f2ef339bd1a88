"""Handing messages over and taking answers: the half of the engine that handlers' threads or tasks call."""

import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from coordinator.core.ahead import STALL_S, Ahead
from coordinator.core.counts import why_again
from coordinator.core.inflight import InFlight
from coordinator.core.losses import Losses
from coordinator.core.partition import Entry, Failing, Partition
from coordinator.core.retry import MAX_ERROR_CHARS, Failure, Redeliver, clean, decide
from coordinator.core.subscription import Subscription
from coordinator.core.window import Window
from coordinator.errors import AlreadySettledError, DeletedError, HandlerError, Reject, Retry, StaleEpochError
from coordinator.model import Claim, Delivery, Facts, Message, PartitionKey, Row, Source

# While the shell carries out a command, -infinity: it asks for the next one anyway, so nothing needs to wake it.
# By so many bits a window is smaller for each crash: 7 messages instead of 500, then 1.
_SHRINK = 6
UNBOUNDED = 1 << 20
NOT_WAITING = float("-inf")

MAX_ATTEMPTS_HEADER = "max-attempts"
# Who publishes may ask for patience, and not for a message that never dies.
MAX_OWN_ATTEMPTS = 1000

_FRESH = Facts()
# Up to so many at once, preparing to work on many costs more than it saves.
_FEW = 4
_MAX_EXTENSION_S = 3600.0
# Of what is ready in a partition, one taker is handed no more than this part ahead.
_SHARE = 8


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds and times of an engine; seconds are monotonic.

    Attributes:
        visibility_timeout_s: From a hand-over to the moment when an unsettled delivery is taken back.
        max_window, max_window_bytes: Read ahead per partition.
        max_in_flight, max_in_flight_bytes: Deliveries of the whole coordinator, and their payloads; the one that crosses the
            second bound is the last.
        max_holes: Runs of unresolved gaps, or ranges of done, per partition; at the bound it stops fetching.
        max_parked: Rows in the retries table per partition; at the bound it stops fetching.
        linger_s: How long an ack may wait for company before an exchange is made for it alone; longer where exchanges take long.
        poll_min_s, poll_max_s: Polling starts at the first after activity and doubles up to the second.
        gap_poll_min_s, gap_poll_max_s: The pauses between two passes over unresolved gaps.
        parked_poll_s: The pause between two looks for what others have put into the retries table.
    """

    visibility_timeout_s: float = 30.0
    max_window: int = 500
    max_window_bytes: int = 8 * 1024 * 1024
    max_in_flight: int = 1000
    max_in_flight_bytes: int = 64 * 1024 * 1024
    max_holes: int = 256
    max_parked: int = 10_000
    linger_s: float = 0.01
    poll_min_s: float = 0.01
    poll_max_s: float = 1.0
    gap_poll_min_s: float = 0.002
    gap_poll_max_s: float = 0.03
    parked_poll_s: float = 1.0


@dataclass(slots=True)
class Lonely:
    """A message that may use up its crash budget, and therefore runs while nothing else of the process does.

    stage: draining (what runs may finish), emptying (an exchange takes back all windows), ready, running; void (its claim is gone
    or going, and that exchange is still under way).
    """

    partition: Partition
    row: Row
    facts: Facts
    stage: str = "draining"
    delivery: Delivery | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a failed attempt, for logs and hooks."""

    message: str
    delay_s: float | None = None
    reason: str | None = None


class Deliveries:
    """Claims, what may start of them, and the heap of deadlines. Callers serialise calls."""

    def __init__(self, limits: Limits, wake: Callable[[], None]) -> None:
        """`wake` tells the shell that `next_command` may have something earlier than the last Wait said."""
        self.limits = limits
        self.heap = InFlight()
        self.partitions: dict[PartitionKey, Partition] = {}
        self.subscriptions: dict[tuple[int, int], Subscription] = {}
        # Of these, what was deleted.
        self.deleted: list[Subscription] = []
        self.lease_until_s = 0.0
        self.draining = False
        self.paused: frozenset[PartitionKey] = frozenset()
        # Set by the shell while the machine is too busy.
        self.held_back = False
        self.lonely: Lonely | None = None
        # What each claim may read, or be handed of its parked, with the next exchange: little after a message has run alone.
        self._most = UNBOUNDED
        # What has failed, and is not written yet: its error is held until it is, so it counts as in flight. Not where it can't be
        # written: the others go on.
        self.failing_count = 0
        self.stale_count = 0
        # Not told to anybody yet.
        self.losses = Losses()
        self.slow: list[Delivery] = []
        self.aheads: list[Ahead] = []
        self._wake = wake
        self._turn = 0
        self._numbers = count(1)
        self._noted: deque[Delivery] = deque()
        # Whose handler has said no within the transaction that would ack them, in time or not.
        self._denied: set[Delivery] = set()
        self._noted_s = 0.0
        # The shell waits, and knows of no ack: the next one that is noted wakes it.
        self._unaware = False
        self._settled_since_s: float | None = None
        self._flush = False
        self._waiting_until_s = NOT_WAITING
        self._start_later_s = float("inf")

    # ---- ownership

    def subscribe(self, subscription: Subscription) -> None:
        self.subscriptions[subscription.group_id, subscription.topic_id] = subscription

    def on_lease(self, until_s: float) -> None:
        """A heartbeat was answered: the self-lease ends then."""
        self.lease_until_s = until_s

    def revoke(self, keys: Iterable[PartitionKey]) -> None:
        """Stop claims: nothing starts any more, and each is released with the exchange after its last settlement."""
        self.take_in()
        self.reclaim()
        for key in keys:
            partition = self.partitions.get(key)
            if partition is not None and not partition.revoking:
                partition.revoking = True
                partition.recovering = False
                partition.forget_unstarted()
                lonely = self.lonely
                if lonely is not None and lonely.partition is partition and lonely.delivery is None:
                    self._forget_lonely(lonely)
        self._poke(0.0)

    def drop(self, keys: Iterable[PartitionKey]) -> list[Partition]:
        """Forget claims that are somebody else's by now."""
        self.take_in()
        dropped = [self.partitions[key] for key in keys if key in self.partitions]
        for partition in dropped:
            self._drop(partition)
        return dropped

    def end(self, subscription: Subscription, why: DeletedError) -> None:
        """What it reads was deleted: its claims are nobody's, and the others go on."""
        subscription.deleted = why
        self.deleted = [each for each in self.subscriptions.values() if each.deleted is not None]
        self.drop([key for key, partition in self.partitions.items() if partition.subscription is subscription])
        self._poke(0.0)

    def drain(self) -> None:
        """Start nothing any more, and release everything as it becomes free."""
        self.draining = True
        self.revoke(list(self.partitions))

    def abandon(self, subscriptions: Iterable[Subscription]) -> int:
        """Give back what is in flight at once, uncharged, and release the claims; returns how many deliveries that were."""
        self.take_in()
        self.reclaim()
        mine = set(map(id, subscriptions))
        given_back = 0
        for partition in self.partitions.values():
            if id(partition.subscription) in mine:
                given_back += len(partition.in_flight)
                partition.given_back.update(partition.in_flight)
                for delivery in partition.in_flight.values():
                    self.heap.settle(delivery)
                partition.in_flight.clear()
        self.revoke([key for key, p in self.partitions.items() if id(p.subscription) in mine])
        return given_back

    def pause(self, subscriptions: Iterable[Subscription], *, paused: bool) -> None:
        """Start nothing of these any more, or go on; what is in flight is finished."""
        self.reclaim()
        for subscription in subscriptions:
            subscription.paused = paused

    def stand_still(self, keys: frozenset[PartitionKey]) -> None:
        """These claims are paused, and no others: of claims that are held, and of those that will be."""
        if keys == self.paused:
            return
        self.take_in()
        self.reclaim()
        self.paused = keys
        for key, partition in self.partitions.items():
            partition.paused = key in keys
            self._queue(partition)
        self._poke(0.0)

    # ---- handing over

    def take(
        self, subscriptions: Sequence[Subscription], max_count: int, now_s: float, ahead: Ahead | None = None
    ) -> list[Message]:
        """Hand over messages that may start now, fairly across partitions: each in its turn.

        Nothing starts once the lease may have run out, beyond a bound, while a message runs alone, or while held back.

        Args:
            ahead: Of a taker that wants one message; what it may be handed with it goes in there.
        """
        self.take_in()
        taken: list[Message] = []
        if now_s >= self.lease_until_s or self.draining or self.held_back:
            self.reclaim()
            return taken
        if self.lonely is not None:
            self.reclaim()
            self._take_lonely(subscriptions, now_s, taken)
            return taken
        if ahead is not None:
            self._reclaim(ahead)
            max_count = ahead.next_count(now_s)
        self._take(subscriptions, max_count, now_s, taken, ahead)
        if not taken and not self._stopped and any(other.messages for other in self.aheads):
            # Nobody stands idle beside what another one has not started.
            self.reclaim()
            self._take(subscriptions, max_count, now_s, taken, ahead)
        if ahead is not None:
            ahead.fill(taken[1:], now_s)
            if len(taken) > 1:
                del taken[1:]
                self._poke(now_s + STALL_S)
        return taken

    def open_ahead(self, most: int | None = None) -> Ahead:
        """Make what one taker holds ahead; `most`: see Ahead."""
        ahead = Ahead() if most is None else Ahead(most)
        self.aheads.append(ahead)
        return ahead

    def close_ahead(self, ahead: Ahead) -> None:
        """The taker has gone; what it has not started goes back."""
        self._reclaim(ahead)
        if ahead in self.aheads:
            self.aheads.remove(ahead)

    def reclaim(self) -> None:
        """Take back what was handed over ahead and not started: uncharged, and first in its partition to start again."""
        for ahead in self.aheads:
            self._reclaim(ahead)

    def _reclaim(self, ahead: Ahead) -> None:
        for message in ahead.take_back():
            message.answered = True
            # Not where its claim was lost meanwhile: then it is another's.
            if self.heap.settle(message):
                partition: Partition = message.owner
                del partition.in_flight[message.offset]
                partition.urgent.appendleft(message.row)
                partition.window.on_not_started(1)
                self._queue(partition)

    def _take(
        self,
        subscriptions: Sequence[Subscription],
        max_count: int,
        now_s: float,
        taken: list[Message],
        ahead: Ahead | None,
    ) -> None:
        max_count = min(max_count, self.limits.max_in_flight - self.heap.live - self.failing_count)
        if self.heap.live_bytes >= self.limits.max_in_flight_bytes:
            return
        self._turn += 1
        for place in range(len(subscriptions)):
            subscription = subscriptions[(place + self._turn) % len(subscriptions)]
            if subscription.paused:
                continue
            room = max_count - len(taken)
            if subscription.rate is not None and subscription.runnable:
                room = min(room, subscription.rate.room(now_s))
                if room <= 0:
                    self._start_later_s = min(self._start_later_s, subscription.rate.next_s(now_s))
            runnable = subscription.runnable
            before, turns = len(taken), len(runnable)
            while turns > 0 and room > 0:
                turns -= 1
                partition = runnable.popleft()
                partition.queued = False
                started = self._start(partition, room if ahead is None else _quick_count(partition, room), now_s, taken)
                self._queue(partition)
                room -= started
                if started and ahead is not None:
                    max_count = room = 0
                if self._stopped or (started and _failed_before(taken)):
                    max_count = 0
                    break
            if subscription.rate is not None:
                subscription.rate.on_started(len(taken) - before)

    @property
    def _stopped(self) -> bool:
        """A message has to run alone: nothing else starts."""
        return self.lonely is not None

    def _start(self, partition: Partition, max_count: int, now_s: float, taken: list[Message]) -> int:
        if not partition.may_start():
            return 0
        if partition.hold_until_s > now_s:
            self._start_later_s = min(self._start_later_s, partition.hold_until_s)
            return 0
        one_at_a_time = partition.subscription.one_at_a_time
        stable = partition.gaps.first if one_at_a_time else None
        by_key = partition.subscription.by_key
        urgent, ready, lanes = partition.urgent, partition.ready, partition.lanes
        started = 0
        if max_count > _FEW and not (one_at_a_time or partition.crashes or partition.facts):
            started = self._start_fresh(partition, max_count, now_s, taken)
            max_count = started  # nothing is left that may start, or the bound is reached
        while started < max_count:
            if urgent:
                if one_at_a_time:
                    first = partition.first_urgent()
                    if first is None:
                        break
                    row = first
                    urgent.remove(row)
                else:
                    row = urgent.popleft()
            elif ready:
                if stable is not None and ready[0][1] > stable:
                    break
                if partition.parked and partition.subscription.one_at_a_time:
                    break
                row = ready.popleft()
                if by_key and not lanes.enter(row):
                    continue
            else:
                break
            facts = partition.charge(row) if partition.crashes or partition.facts else None
            if facts is not None and facts.fails and taken:
                # What has failed goes in a batch of one, so that a failing batch does not use up its neighbours' attempts.
                urgent.appendleft(row)
                break
            if facts is not None and facts.crashes and self._crashed(partition, row, facts):
                if self.lonely is not None:
                    break
                continue
            self._hand_over(partition, row, facts, now_s, taken)
            started += 1
            if self.heap.live_bytes >= self.limits.max_in_flight_bytes:
                break
            if facts is not None and facts.fails:
                break
        partition.window.on_started(started, now_s)
        more = partition.high >= partition.hwm
        if not ready and not more:
            partition.window.on_idle()
        if more and partition.runs_low:
            self._poke(now_s)
        return started

    def _start_fresh(self, partition: Partition, max_count: int, now_s: float, taken: list[Message]) -> int:
        """`_start` where nothing is known of the messages but their rows: by far the most of them, so in one go."""
        bytes_left = self.limits.max_in_flight_bytes - self.heap.live_bytes
        rows = partition.pick(max_count, bytes_left)
        deadline_s = now_s + self.limits.visibility_timeout_s
        if not rows:
            return 0
        messages = [
            Message(partition, row, row[1], number, 1, deadline_s, now_s)
            for row, number in zip(rows, self._numbers, strict=False)
        ]
        partition.in_flight.update(zip([row[1] for row in rows], messages, strict=True))
        self.heap.push_all(messages)
        taken += messages
        if deadline_s < self._waiting_until_s:
            self._poke(deadline_s)
        return len(messages)

    def _hand_over(
        self, partition: Partition, row: Row, facts: Facts | None, now_s: float, taken: list[Message]
    ) -> Message:
        deadline_s = now_s + self.limits.visibility_timeout_s
        attempt = 1
        if facts is not None:
            attempt += facts.fails + facts.crashes
            reason = why_again(facts)
            if reason is not None:
                partition.subscription.counts.redeliver(reason)
        message = Message(partition, row, row[1], next(self._numbers), attempt, deadline_s, now_s, facts)
        partition.in_flight[row[1]] = message
        self.heap.push(message)
        if deadline_s < self._waiting_until_s:
            self._poke(deadline_s)
        taken.append(message)
        return message

    def _crashed(self, partition: Partition, row: Row, facts: Facts) -> bool:
        """Deal with a message that may have killed a process; False if it may start as any other.

        Charges are upper bounds, so all but the last crash may be a neighbour's. Who would use up its budget runs alone, and
        only a crash while it was alone may be its last.
        """
        max_crashes = partition.subscription.policy.max_crashes
        if facts.alone and facts.crashes >= max_crashes:
            failure = Failure(
                f"the process died {facts.crashes} times with it, the last time with nothing else running"
            )
            self._bury(partition, row, facts, "crash", failure, 1 + facts.fails + facts.crashes)
            return True
        if facts.crashes >= max_crashes - 1:
            self.lonely = Lonely(partition, row, facts)
            partition.aside = row[1]
            # Who has one of them is likely to have more, and each takes back what was read ahead.
            self._most = 1
            self._poke(0.0)
            return True
        return False

    def _take_lonely(self, subscriptions: Sequence[Subscription], now_s: float, taken: list[Message]) -> None:
        lonely = self.lonely
        if lonely is None or lonely.stage in ("emptying", "void", "running"):
            return
        if lonely.partition.subscription.paused or lonely.partition.paused:
            # The others must not stand still for as long as that: it gets its turn when it goes on.
            self._put_off(lonely)
            return
        if lonely.stage != "ready" or lonely.partition.subscription not in subscriptions:
            return
        lonely.stage = "running"
        if lonely.partition.subscription.by_key:
            lonely.partition.lanes.unpark(lonely.row)
        lonely.delivery = self._hand_over(lonely.partition, lonely.row, lonely.facts, now_s, taken)
        lonely.partition.subscription.counts.delivered += 1

    def _put_off(self, lonely: Lonely) -> None:
        """Let the others go on, and put a message that was to run alone back to where it waits for its turn."""
        self.lonely = None
        partition, row = lonely.partition, lonely.row
        if lonely.stage == "ready" and partition.subscription.by_key:
            self._urge(partition, partition.lanes.unpark(row))
        else:
            partition.urgent.appendleft(row)
        partition.aside = None
        for waiting in self.partitions.values():
            self._queue(waiting)
        self._poke(0.0)

    def _forget_lonely(self, lonely: Lonely) -> None:
        """Its claim is lost, or to be released.

        Not while all windows are being taken back: what started now would have no window by the time of its ack, which would then
        be written over nothing, and told to be durable.
        """
        if lonely.stage in ("emptying", "void"):
            lonely.stage = "void"
        else:
            self.lonely = None

    def _end_lonely(self, delivery: Delivery) -> None:
        if self.lonely is not None and self.lonely.delivery is delivery:
            self.lonely.partition.aside = None
            self.lonely = None
            # Everybody waits for what is read next.
            self._flush = True
            self._poke(0.0)

    def _settle_lonely(self, lonely: Lonely) -> None:
        """A late ack, by a run that has overrun its deadline, of the message that waits to run alone: it must not run again."""
        partition, row = lonely.partition, lonely.row
        if lonely.stage == "ready":
            self._urge(partition, partition.lanes.unblock(row[4], row[1]))
        else:
            self._leave(partition, row)
        partition.aside = None
        self._forget_lonely(lonely)
        for waiting in self.partitions.values():
            self._queue(waiting)
        self._poke(0.0)

    # ---- answers

    def note_ack(self, delivery: Delivery, now_s: float) -> None:
        """`ack`, but taken in later, and by any thread at any moment: callers need not serialise this call.

        Every other call takes in what was noted before it, so that all of them count in the order in which they were made.

        Raises:
            StaleEpochError: As `ack`; where the claim is lost just now, `losses` tells.
        """
        owner: Partition = delivery.owner
        if owner.lost:
            self._held(delivery)
        # Its transaction acks it at its end, or not at all: an ack that outlives the effects would lose them.
        if owner.runs and delivery in owner.runs.get(delivery.offset, ()):
            return
        self._noted_s = now_s
        self._noted.append(delivery)
        # In this order, and take_in looks in the other: either it finds the ack, or the shell is woken.
        if self._unaware:
            self._unaware = False
            self._wake()

    def take_in(self) -> None:
        """Settle what was noted."""
        noted = self._noted
        if not noted:
            return
        now_s = self._noted_s
        if len(noted) <= _FEW:
            while noted:
                delivery = noted.popleft()
                if delivery.owner.lost:
                    self._lost_ack(delivery.owner)
                elif not delivery.answered:
                    self._ack(delivery.owner, delivery, now_s)
            return
        plain: list[Delivery] = []
        owner: Partition | None = None
        while noted:
            delivery = noted.popleft()
            partition: Partition = delivery.owner
            if partition is not owner:
                if owner is not None and plain:
                    self._settle_plain(owner, plain, now_s)
                    plain = []
                owner = partition
            if delivery.answered:
                continue
            if partition.lost:
                self._lost_ack(partition)
            elif delivery.live and not (partition.parked or partition.facts or partition.unfolded or self.lonely):
                delivery.answered = True
                plain.append(delivery)
            else:
                self._ack(partition, delivery, now_s)
        if owner is not None and plain:
            self._settle_plain(owner, plain, now_s)

    def _lost_ack(self, partition: Partition) -> None:
        """An ack was noted while the claim was being lost."""
        self.stale_count += 1
        partition.subscription.counts.stale += 1
        self._cut_off(partition)

    def _cut_off(self, partition: Partition) -> None:
        if not partition.cut_off:
            partition.cut_off = True
            self.losses.add(partition.source)

    def _settle_plain(self, partition: Partition, deliveries: Sequence[Delivery], now_s: float) -> None:
        """`_ack` where nothing is known of live deliveries of one partition but their rows: most of them, so in one go."""
        self.heap.settle_all(deliveries)
        partition.settle_all(deliveries)
        self._linger(now_s)
        self._queue(partition)

    def ack(self, delivery: Delivery, now_s: float) -> Partition:
        """Settle a message; also by an earlier delivery of it, as long as it is unsettled: the work is done.

        Raises:
            StaleEpochError: If the claim is not this coordinator's any more, or was claimed again.
            HandlerError: If a transaction is open that acks this delivery at its end.
        """
        self.take_in()
        partition = self._held(delivery)
        if delivery in partition.runs.get(delivery.offset, ()):
            raise HandlerError(
                "the message is acked by the end of its transaction, for which an ack within it can't wait"
            )
        if not delivery.answered:
            self._ack(partition, delivery, now_s)
        return partition

    def _ack(self, partition: Partition, delivery: Delivery, now_s: float) -> None:
        delivery.answered = True
        if not self.heap.settle(delivery) and not self._settle_late(partition, delivery):
            return
        if partition.in_flight.pop(delivery.offset, None) is not None:
            self._leave(partition, delivery.row)
        self._settle(partition, delivery.row, now_s)
        if self.lonely is not None:
            self._end_lonely(delivery)
        if not partition.queued:
            self._queue(partition)

    def fail(
        self,
        delivery: Delivery,
        error: BaseException | None,
        failure: Failure,
        now_s: float,
        jitter: float,
        *,
        delay_s: float | None = None,
    ) -> Verdict | None:
        """Take the failure of a live delivery: it is written first, then the message is parked or a dead letter.

        Returns:
            What will become of it; None when the delivery is not live any more: then nothing happens, but that its transaction,
            if it is in one, is rolled back.

        Raises:
            StaleEpochError: If the claim is not this coordinator's any more.
        """
        if delay_s is not None:
            # Before anything is changed: it may be no number.
            error = Retry(delay_s)
        self.take_in()
        partition = self._held(delivery)
        if delivery in partition.runs.get(delivery.offset, ()):
            self._denied.add(delivery)
        if delivery.answered or not self.heap.settle(delivery):
            return None
        delivery.answered = True
        return self._fail(partition, delivery, error, failure, now_s, jitter, running=False)

    def give_back(self, delivery: Delivery, now_s: float, pause_s: float) -> None:
        """Take a live delivery back without a charge: an outage, not its handler, kept it from being done."""
        self.take_in()
        partition = self._held(delivery)
        if not delivery.answered and self.heap.settle(delivery):
            delivery.answered = True
            partition.in_flight.pop(delivery.offset, None)
            if delivery.facts is not None:
                partition.facts[delivery.offset] = delivery.facts
            partition.urgent.appendleft(delivery.row)
            partition.subscription.counts.redeliver("given_back")
            partition.hold_until_s = max(partition.hold_until_s, now_s + pause_s)
            self._end_lonely(delivery)
            self._queue(partition)

    def extend(self, delivery: Delivery, deadline_s: float, now_s: float) -> bool:
        """Move a live delivery's deadline, an hour ahead at most; False, and nothing happens, when it is not live any more.

        Raises:
            StaleEpochError: If the claim is not this coordinator's any more.
        """
        self.take_in()
        self._held(delivery)
        deadline_s = min(deadline_s, now_s + _MAX_EXTENSION_S)
        extended = self.heap.extend(delivery, deadline_s)
        if extended:
            self._poke(deadline_s)
        return extended

    def begin_runs(self, deliveries: Sequence[Delivery]) -> None:
        """Transactional runs of messages start: they may try to commit until they have ended.

        Raises:
            AlreadySettledError: One of the messages is settled, or becomes a dead letter, or its handler has given it back. The
                acks row that would refuse such a run stays for runs that are alive, and may be gone.
        """
        self.take_in()
        for delivery in deliveries:
            partition: Partition = delivery.owner
            failing = partition.failing.get(delivery.offset)
            # A dead letter that is on its way without a guard, as of a message with no run, would be there beside the effects.
            dying = failing is not None and failing.entry["k"] == "dead"
            if not partition.lost and (delivery.answered or dying or not self._unsettled(partition, delivery)):
                raise AlreadySettledError(
                    f"{partition.source.topic}/{partition.key.partition}@{delivery.offset} is settled or given back already"
                )
        for delivery in deliveries:
            self.begin_run(delivery)

    def begin_run(self, delivery: Delivery) -> None:
        """A transactional run of a message starts, which was not settled a moment ago."""
        delivery.owner.runs.setdefault(delivery.offset, []).append(delivery)

    def check_runs(self, deliveries: Sequence[Delivery]) -> None:
        """Transactional runs are about to commit.

        Raises:
            AlreadySettledError: The handler of one of the messages has given it back or rejected it meanwhile, or it became
                a dead letter and was replayed.
        """
        self.take_in()
        for delivery in deliveries:
            partition: Partition = delivery.owner
            if not partition.lost and self._outlived(delivery):
                raise AlreadySettledError(
                    f"{partition.source.topic}/{partition.key.partition}@{delivery.offset} became a dead letter meanwhile, and "
                    "was replayed: this run is rolled back"
                )
            denied = delivery in self._denied or (delivery.answered and self._unsettled(partition, delivery))
            if denied and not partition.lost:
                raise AlreadySettledError(
                    f"{partition.source.topic}/{partition.key.partition}@{delivery.offset} was given back or rejected in its "
                    "transaction, which is rolled back"
                )

    def end_run(self, delivery: Delivery) -> None:
        """A transactional run has ended, whatever its outcome; with the last one, the acks row may go."""
        self.take_in()
        partition: Partition = delivery.owner
        self._denied.discard(delivery)
        runs = partition.runs.get(delivery.offset, [])
        if delivery in runs:
            runs.remove(delivery)
        if runs:
            return
        partition.runs.pop(delivery.offset, None)
        failing = partition.failing.get(delivery.offset)
        if failing is not None and failing.acked:
            # The retries row may still be written: the acks row that outranks it goes with that one, not before.
            return
        self._fold(partition, delivery.offset)

    def acked_in_transaction(self, delivery: Delivery, now_s: float) -> None:
        """A run's transaction, with its ack, has committed."""
        partition: Partition = delivery.owner
        if partition.lost or self._outlived(delivery):
            return
        partition.unfolded.add(delivery.offset)
        self.take_in()
        # It may have been given back since `check_runs`, by another thread.
        if not delivery.answered or self._unsettled(partition, delivery):
            self._ack(partition, delivery, now_s)

    def doubt(self, deliveries: Iterable[Delivery]) -> None:
        """Nobody will know whether a run's transaction has committed: its asking was cut off. Drop the claims.

        They are claimed again, under a new epoch: that waits for the COMMIT, and takes in its acks. With this epoch gone on, the
        acks row could be folded while the message waits to run again, and its effects would be there twice.
        """
        self.drop({delivery.owner.key for delivery in deliveries if not delivery.owner.lost})

    def flush(self) -> None:
        """Let the next command write what is settled, without waiting for company."""
        self.take_in()
        self._flush = True
        self._poke(0.0)

    # ---- inside

    def _held(self, delivery: Delivery) -> Partition:
        partition: Partition = delivery.owner
        if partition.lost:
            self.stale_count += 1
            partition.subscription.counts.stale += 1
            current = self.partitions.get(partition.key)
            if partition.subscription.deleted is not None:
                raise StaleEpochError(str(partition.subscription.deleted), held=partition.epoch)
            raise StaleEpochError(
                f"{partition.source.topic}/{partition.key.partition} of group {partition.source.group} is not owned under "
                f"epoch {partition.epoch} any more; the message will be, or was, handled by its owner",
                held=partition.epoch,
                current=current.epoch if current is not None else None,
            )
        return partition

    @staticmethod
    def _outlived(delivery: Delivery) -> bool:
        """Tell whether a delivery's message became a dead letter, which settled it, and was replayed: it says nothing of that."""
        replays: int = delivery.owner.replayed.get(delivery.offset, 0)
        return replays > (delivery.facts.replays if delivery.facts is not None else 0)

    def _unsettled(self, partition: Partition, delivery: Delivery) -> bool:
        """Tell whether a message is in flight, waits for its turn, or has failed: where `_settle_late` would find it."""
        offset = delivery.offset
        if self._outlived(delivery):
            return False
        if delivery.live or offset in partition.in_flight or offset in partition.given_back:
            return True
        failing = partition.failing.get(offset)
        if failing is not None:
            return not failing.acked
        if offset in partition.parked:
            # Acked, it is parked until the answer to its clear, with which the acks row has gone.
            entries = (*partition.sent_hard, *partition.hard)
            return not any(entry["k"] == "clear" and entry["offset"] == offset for entry in entries)
        waiting = (*partition.urgent, *partition.ready, *partition.lanes.rows())
        return any(row[1] == offset for row in waiting)

    def _settle_late(self, partition: Partition, delivery: Delivery) -> bool:
        """An ack of a delivery that is not live: take the message out of wherever it is; False if it is settled."""
        offset, row = delivery.offset, delivery.row
        if self._outlived(delivery):
            return False
        if offset in partition.given_back:
            partition.given_back.discard(offset)
            return True
        lonely = self.lonely
        if lonely is not None and lonely.delivery is None and lonely.partition is partition and lonely.row[1] == offset:
            self._settle_lonely(lonely)
            return True
        current = partition.in_flight.get(offset)
        if current is not None:
            self.heap.settle(current)
            self._end_lonely(current)
            return True
        failing = partition.failing.get(offset)
        if failing is not None:
            sent_before = "o" in failing.entry and partition.unproven
            if failing.entry not in partition.hard or (sent_before and failing.entry["k"] == "dead"):
                # It is on its way: a retry is cleared when it is known to be written, a dead letter stands.
                if not failing.acked and failing.entry["k"] == "retry":
                    partition.settled_count += 1
                failing.acked = True
                return False
            partition.hard.remove(failing.entry)
            if sent_before:
                # The exchange that was given up as not written may still be carried out, and park it.
                partition.hard.append({"k": "clear", "offset": offset, "key": row[4]})
            self._end_failing(partition, offset)
            self._leave(partition, row)
            return True
        for queue in (partition.urgent, partition.ready):
            for place, waiting in enumerate(queue):
                if waiting[1] == offset:
                    del queue[place]
                    if queue is partition.urgent:
                        self._leave(partition, row)
                    return True
        if partition.lanes.take_waiting(row[4], offset):
            return True
        if offset in partition.parked:
            partition.ahead = [waiting for waiting in partition.ahead if waiting[1] != offset]
            self._urge(partition, partition.lanes.unblock(row[4], offset))
            return True
        return False

    def _settle(self, partition: Partition, row: Row, now_s: float) -> None:
        offset = row[1]
        if offset in partition.parked:
            partition.hard.append({"k": "clear", "offset": offset, "key": row[4]})
            partition.subscription.counts.acked += 1
        else:
            partition.settled.append(offset)
        if partition.facts:
            partition.facts.pop(offset, None)
        if partition.unfolded and offset not in partition.runs:
            self._fold(partition, offset)
        partition.settled_count += 1
        self._linger(now_s)

    def _fold(self, partition: Partition, offset: int) -> None:
        """The acks row of a settled message may go; to be written with what settles it, or later."""
        if offset in partition.unfolded and not partition.lost:
            partition.unfolded.discard(offset)
            last = partition.hard[-1] if partition.hard else None
            if last is not None and last["k"] == "fold":
                last["offsets"].append(offset)
            else:
                partition.hard.append({"k": "fold", "offsets": [offset]})

    def _fail(
        self,
        partition: Partition,
        delivery: Delivery,
        error: BaseException | None,
        failure: Failure,
        now_s: float,
        jitter: float,
        *,
        running: bool,
    ) -> Verdict:
        row, facts = delivery.row, delivery.facts or _FRESH
        partition.in_flight.pop(delivery.offset, None)
        policy = partition.subscription.policy
        decision = decide(policy, error, delivery.attempt, facts.fails, _own_max_attempts(row), jitter)
        if isinstance(decision, Redeliver):
            # A deadline's message goes to the head of the queue at once, as its first run may still be alive.
            delay_s = 0.0 if running else decision.delay_s
            entry: Entry = {
                "k": "retry",
                "offset": delivery.offset,
                "key": row[4],
                "delay_s": delay_s,
                "running": running,
                "replays": facts.replays,
                "error": _error(failure, delivery.attempt),
            }
            self._begin_failing(partition, Failing(row, entry, facts))
            partition.hard.append(entry)
            partition.subscription.counts.retried += 1
            verdict = Verdict(failure.kind or failure.error, delay_s=delay_s)
        else:
            # Cleaned as all errors are: what PostgreSQL cannot store would fail this exchange and every one after it.
            reason = clean(str(error.reason), MAX_ERROR_CHARS) if isinstance(error, Reject) else failure.error
            self._bury(partition, row, facts, decision.reason, Failure(reason, failure.traceback), delivery.attempt)
            verdict = Verdict(failure.kind or failure.error, reason=decision.reason)
        partition.settled_count += 1
        self._end_lonely(delivery)
        self._linger(now_s)
        return verdict

    def _bury(self, partition: Partition, row: Row, facts: Facts, reason: str, failure: Failure, attempts: int) -> None:
        entry: Entry = {
            "k": "dead",
            "offset": row[1],
            "key": row[4],
            "reason": reason,
            "error": _error(failure, attempts),
            "attempts": attempts,
            "crashes": facts.crashes,
            "replays": facts.replays,
            # Where a handler takes its transaction from the message, only the runs tell.
            "guard": partition.subscription.transactional or row[1] in partition.runs,
        }
        self._begin_failing(partition, Failing(row, entry, facts))
        partition.hard.append(entry)
        self.flush()

    def _begin_failing(self, partition: Partition, failing: Failing) -> None:
        partition.failing[failing.row[1]] = failing
        partition.unwritten_count += 1
        self.failing_count += 1

    def _end_failing(self, partition: Partition, offset: int) -> Failing | None:
        failing = partition.failing.pop(offset, None)
        if failing is not None and failing.refused is None:
            self._no_longer_counts(partition)
        return failing

    def _no_longer_counts(self, partition: Partition) -> None:
        partition.unwritten_count -= 1
        self.failing_count -= 1
        self._queue(partition)

    def _take_back(self, now_s: float, jitter: Callable[[], float]) -> list[tuple[Delivery, Verdict]]:
        """Take back what is past its deadline; alive handlers' deadlines are moved on by the shell before."""
        taken_back = []
        for delivery in self.heap.pop_due(now_s):
            partition: Partition = delivery.owner
            if partition.in_flight.get(delivery.offset) is not delivery:
                continue
            if delivery.extend_until_s > now_s:
                later_s = min(now_s + self.limits.visibility_timeout_s, delivery.extend_until_s)
                self.heap.revive(delivery, later_s)
                self.slow.append(delivery)
                continue
            if partition.revoking:
                # Released soon, and then it is the next owner's; an ack until then is still taken.
                del partition.in_flight[delivery.offset]
                partition.given_back.add(delivery.offset)
                self._end_lonely(delivery)
                continue
            held_s = now_s - delivery.started_s
            failure = Failure(f"not settled within its deadline, {held_s:.1f} s after it was handed over")
            verdict = self._fail(partition, delivery, None, failure, now_s, jitter(), running=True)
            self.flush()
            taken_back.append((delivery, verdict))
        return taken_back

    def _leave(self, partition: Partition, row: Row) -> None:
        """The running message of a key has ended."""
        if partition.subscription.by_key:
            self._urge(partition, partition.lanes.leave(row[4]))

    def _urge(self, partition: Partition, row: Row | None) -> None:
        if row is not None:
            partition.urgent.append(row)

    def _queue(self, partition: Partition) -> None:
        if not partition.queued and partition.may_start():
            partition.queued = True
            partition.subscription.runnable.append(partition)

    def _linger(self, now_s: float) -> None:
        if self._settled_since_s is None:
            self._settled_since_s = now_s
            self._poke(now_s + self.limits.linger_s)

    def _poke(self, at_s: float) -> None:
        """Wake the shell if it waits for something later than this."""
        if at_s < self._waiting_until_s:
            self._waiting_until_s = at_s
            self._wake()

    def _drop(self, partition: Partition) -> None:
        if not partition.lost:
            partition.subscription.counts.delivered += partition.window.started_count
            if partition.holds_unsaved:
                self._cut_off(partition)
        partition.lost = True
        for delivery in partition.in_flight.values():
            self.heap.settle(delivery)
        partition.in_flight.clear()
        for offset in list(partition.failing):
            self._end_failing(partition, offset)
        partition.ready.clear()
        partition.urgent.clear()
        if self.lonely is not None and self.lonely.partition is partition:
            self._forget_lonely(self.lonely)
        if self.partitions.get(partition.key) is partition:
            del self.partitions[partition.key]

    def _claimed(self, claim: Claim, now_s: float) -> Partition:
        old = self.partitions.get(claim.key)
        if old is not None:
            self._drop(old)
        subscription = self.subscriptions[claim.key.group_id, claim.key.topic_id]
        source = Source(subscription.group, subscription.topic, claim.key.partition, claim.epoch, subscription.settler)
        # Small where one has died, until what that may have been is settled: the smaller it is, the fewer neighbours are charged
        # with the next death, and each of those may have to run alone.
        window = Window(max(self.limits.max_window >> _SHRINK * len(claim.crashes), 1), self.limits.max_window_bytes)
        partition = Partition(claim, source, subscription, window)
        if claim.crashes:
            pause_s = subscription.policy.delay_s(len(claim.crashes), 1.0)
            partition.hold_until_s = now_s + max(pause_s - claim.crashes[0].age_s, 0.0)
        partition.revoking = self.draining
        partition.paused = claim.key in self.paused
        self.partitions[claim.key] = partition
        return partition


def _quick_count(partition: Partition, room: int) -> int:
    """How many of a partition one taker may have ahead: a small part of many, and only of those of which nothing is known.

    One where the next may start only when the one before is settled: whether it is, nobody asks who starts what is ahead.
    """
    subscription = partition.subscription
    if subscription.one_at_a_time or subscription.rate is not None or partition.crashes or partition.facts:
        return min(room, 1)
    return min(room, max((len(partition.ready) + len(partition.urgent)) // _SHARE, 1))


def _failed_before(taken: Sequence[Message]) -> bool:
    """A message that has failed is taken, which is to be a batch of one."""
    delivery = taken[0].delivery
    return delivery is not None and delivery.facts is not None and delivery.facts.fails > 0


def _error(failure: Failure, attempt: int) -> dict[str, Any]:
    error: dict[str, Any] = {"error": failure.error, "attempt": attempt}
    if failure.traceback:
        error["traceback"] = failure.traceback
    return error


def _own_max_attempts(row: Row) -> int | None:
    """A message's own budget, from its headers; only looked at when an attempt has failed."""
    headers = row[5]
    if headers is None or MAX_ATTEMPTS_HEADER not in headers:
        return None

    budget = json.loads(headers).get(MAX_ATTEMPTS_HEADER)
    if isinstance(budget, str) and budget.isascii() and budget.isdecimal():
        # From the command line, or from whoever can put nothing but text into a header; more digits than any bound are as good.
        budget = int(budget[:20])
    if not isinstance(budget, int) or isinstance(budget, bool) or budget < 1:
        return None
    return min(budget, MAX_OWN_ATTEMPTS)
