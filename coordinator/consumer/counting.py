"""What one coordinator counts beside its engine, and how both are read for metrics; the same for both shells."""

import time
from collections.abc import Callable, Iterable

from coordinator.consumer.membership import Moves
from coordinator.core.loop import Engine, Exchange
from coordinator.core.subscription import Subscription
from coordinator.model import Claim, Message
from coordinator.observe import metrics
from coordinator.observe.meter import Histogram, Reading

# Latency and handlers are measured once in so many seconds, by each worker: to do so for each message of an empty handler cost
# a tenth of the CPU that it needs.
SAMPLE_S = 0.01
# How often the server's clock is asked for.
CLOCK_LOOK_S = 15.0


class Counting:
    """Written by the loops of one coordinator, each number by one of them.

    Attributes:
        listening: LISTEN is in force; None where it is not wanted. hears: what was notified was heard, as far as is known.
        clock_skew_s: The server's clock less this machine's; None until it was asked for.
        sample_at_s: A hand-over then, or later, is to be told to `taken`.
        away_since_s: Since when the loops have been without a database, by loop; monotonic.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.exchange_s = Histogram(metrics.DURATION_BOUNDS)
        self.exchange_size = Histogram(metrics.SIZE_BOUNDS)
        self.notified_count = 0
        self.lease_losses = 0
        self.rebalances: dict[str, int] = {}
        self.listening: bool | None = None
        self.hears: Callable[[], bool] = lambda: True
        self.clock_skew_s: float | None = None
        self.away_since_s: dict[str, float] = {}
        self.sample_at_s = 0.0
        self._started: dict[tuple[str, str], int] = {}
        self._latency: dict[tuple[str, str], Histogram] = {}
        self._handlers: list[tuple[str, str, Histogram]] = []

    def taken(self, message: Message) -> None:
        """A message was handed over; under the engine's lock. Called with one of those since `sample_at_s`."""
        delivery = message.delivery
        if delivery is None or delivery.started_s < self.sample_at_s or self.clock_skew_s is None:
            return
        self.sample_at_s = delivery.started_s + SAMPLE_S
        place = (message.topic, message.group)
        histogram = self._latency.get(place)
        if histogram is None:
            histogram = self._latency[place] = Histogram(metrics.LATENCY_BOUNDS)
        latency_s = time.time() + self.clock_skew_s - message.published_at.timestamp()
        histogram.observe(max(latency_s, 0.0))

    def exchanged(self, exchange: Exchange, row_count: int, began_s: float, ended_s: float) -> None:
        """An exchange was answered with so many messages; monotonic."""
        self.exchange_s.observe(ended_s - began_s)
        settled_count = sum(hi - lo for ranges in exchange.settled for lo, hi in ranges)
        self.exchange_size.observe(row_count + settled_count)

    def clock_read(self, server_s: float, sent_s: float, received_s: float) -> None:
        """The server's clock was asked for: seconds since 1970, there and here."""
        self.clock_skew_s = server_s - (sent_s + received_s) / 2

    def moved(self, claims: Iterable[Claim], found: Moves) -> None:
        """A look at the membership has brought these claims, and the moves of `found`; before the engine is told."""
        held = self._engine.partitions
        given_up = (key for key in (*found.lost, *found.surplus) if key in held and not held[key].revoking)
        moved = {key.group_id for key in (*(claim.key for claim in claims), *given_up)}
        names = {subscription.group_id: subscription.group for subscription in self._engine.subscriptions.values()}
        for group in {names[group_id] for group_id in moved}:
            self.rebalances[group] = self.rebalances.get(group, 0) + 1

    def handler(self, group: str) -> "HandlerTimes":
        """Return where one worker notes how long its handler took."""
        return HandlerTimes(group, self._handlers)

    def read(self, into: Reading) -> None:
        """See meter.Source."""
        engine = self._engine
        for subscription in list(engine.subscriptions.values()):
            counts, place = subscription.counts, (subscription.topic, subscription.group)
            into.count(metrics.STARTED, self._started_count(subscription), *place)
            into.count(metrics.STALE, counts.stale, *place)
            dead = dict(counts.dead_lettered)
            for outcome, count in zip(
                metrics.OUTCOMES, (counts.acked, counts.retried, sum(dead.values())), strict=True
            ):
                into.count(metrics.DELIVERIES, count, *place, outcome)
            for reason in metrics.REDELIVERY_REASONS:
                into.count(metrics.REDELIVERIES, counts.redelivered.get(reason, 0), *place, reason)
            for reason in metrics.DEAD_LETTER_REASONS:
                into.count(metrics.DEAD_LETTERS, dead.get(reason, 0), *place, reason)
            for metric in (metrics.READY, metrics.IN_FLIGHT, metrics.PARKED, metrics.BLOCKED_KEYS, metrics.PARTITIONS):
                into.gauge(metric, 0, *place)
        for topic, group, histogram in list(self._handlers):
            into.histogram(metrics.HANDLER_DURATION, histogram, topic, group)
        for (topic, group), histogram in list(self._latency.items()):
            into.histogram(metrics.DELIVERY_LATENCY, histogram, topic, group)
        into.histogram(metrics.EXCHANGE_DURATION, self.exchange_s)
        into.histogram(metrics.EXCHANGE_SIZE, self.exchange_size)
        into.count(metrics.WAKE_UPS, self.notified_count, "notify")
        into.count(metrics.WAKE_UPS, engine.poll_count, "poll")
        into.count(metrics.LEASE_LOSSES, self.lease_losses)
        for group, count in list(self.rebalances.items()):
            into.count(metrics.REBALANCES, count, group)
        self._gauges(into)

    def _started_count(self, subscription: Subscription) -> int:
        """Hand-overs; never less than before: a partition that is dropped at this moment may be missing in both places."""
        started = subscription.counts.delivered + sum(
            partition.window.started_count
            for partition in list(self._engine.partitions.values())
            if partition.subscription is subscription
        )
        place = (subscription.topic, subscription.group)
        self._started[place] = max(started, self._started.get(place, 0))
        return self._started[place]

    def _gauges(self, into: Reading) -> None:
        engine = self._engine
        into.gauge(metrics.IN_FLIGHT_LIMIT, engine.limits.max_in_flight)
        into.gauge(metrics.IN_FLIGHT_BYTES, engine.heap.live_bytes)
        for partition in list(engine.partitions.values()):
            place = (partition.source.topic, partition.source.group)
            waiting = len(partition.ready) + len(partition.urgent) + partition.lanes.waiting_count
            into.gauge(metrics.READY, waiting, *place)
            into.gauge(metrics.IN_FLIGHT, len(partition.in_flight), *place)
            into.gauge(metrics.PARKED, len(partition.parked), *place)
            into.gauge(metrics.PARTITIONS, 1, *place)
            into.gauge(metrics.BLOCKED_KEYS, partition.lanes.blocked_count(), *place)
        # Of several coordinators in one process, the one that is worst off.
        lease_s = engine.lease_until_s - time.monotonic()
        into.gauges[metrics.LEASE_LEFT, ()] = min(lease_s, into.gauges.get((metrics.LEASE_LEFT, ()), lease_s))
        if self.listening is not None:
            listening = float(self.listening and self.hears())
            into.gauges[metrics.LISTENER, ()] = min(listening, into.gauges.get((metrics.LISTENER, ()), listening))
        if self.clock_skew_s is not None:
            into.gauges[metrics.CLOCK_SKEW, ()] = self.clock_skew_s


class HandlerTimes:
    """One worker's histograms, by topic. next_s: a call that begins then, or later, is to be measured."""

    __slots__ = ("_all", "_by_topic", "_group", "next_s")

    def __init__(self, group: str, every: list[tuple[str, str, Histogram]]) -> None:
        self.next_s = 0.0
        self._group = group
        self._all = every
        self._by_topic: dict[str, Histogram] = {}

    def note(self, topic: str, began_s: float, ended_s: float) -> None:
        self.next_s = began_s + SAMPLE_S
        histogram = self._by_topic.get(topic)
        if histogram is None:
            histogram = self._by_topic[topic] = Histogram(metrics.DURATION_BOUNDS)
            self._all.append((topic, self._group, histogram))
        histogram.observe(ended_s - began_s)
