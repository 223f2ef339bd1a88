"""The engine of one consumer process: facts in, commands out. No I/O, no clock, no threads; callers serialise calls.

A shell asks `next_command`, carries it out, and reports by `on_exchanged`, `on_failed` or `on_resolved`. Handlers' threads
or tasks ask `take` and report by `ack` or `fail`. Everything of all groups of the process goes through one engine, because
one exchange serves all claims and one heap holds all deadlines.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from coordinator.core.ahead import STALL_S
from coordinator.core.deliveries import NOT_WAITING, UNBOUNDED, Deliveries, Limits, Verdict
from coordinator.core.partition import FAILURES, Entry, Partition
from coordinator.core.ranges import Range, contains, merge, subtract
from coordinator.core.subscription import Subscription
from coordinator.model import Claim, Delivery, Due, GapEvidence, Parked, Resolved, Row, Settled

__all__ = ["Changes", "Engine", "Exchange", "Limits", "Resolve", "Subscription", "Wait"]

_BUSY_PAUSE_S = 0.02
_PUT_OFF_S = 1.0
_REFUSED_PAUSE_S = 1.0
# Of all partitions, in one exchange.
_MAX_FAILURES = 500
# Parked messages of one claim that are handed out by one exchange.
_MAX_DUE = 200
# Acks wait for company for so many times as long as the last exchange took, but no longer than so many times linger_s: where
# an exchange is dear, for its many partitions or a slow server, that divides its cost between more of them.
_LINGER_TIMES = 2
_LINGER_MOST = 20
# So many messages are read without waiting for what is in memory to be used up by half.
_WORTHWHILE = 2000


@dataclass(frozen=True, slots=True)
class Exchange:
    """Command: one round trip. Lists that go together are parallel.

    Attributes:
        partitions, settled, wants: What is written, for all claims.
        settled_counts: What `on_saved` is to be told.
        hard: What is more than an ack, each entry with the place (from 1) of its claim under "o".
        fetching: Claims whose windows are read behind the commit; empty when nothing is expected.
        parked: Claims whose retries are looked at: those due are handed out, and what was handed out is read.
        gaps: Claims with unresolved gaps, and what was asked of each.
        releases: Claims to give back in the same transaction.
        due_limits: How many of the parked messages of these claims may be handed out.
        due_ages_s: What became due longer ago need not be looked at again; None: all of it.
    """

    partitions: Sequence[Partition]
    settled: Sequence[Sequence[Range]]
    wants: Sequence[int]
    settled_counts: Sequence[int]
    hard: Sequence[Entry]
    fetching: Sequence[Partition]
    parked: Sequence[Partition]
    gaps: Sequence[tuple[Partition, Sequence[Range]]]
    releases: Sequence[Partition]
    due_limits: Sequence[int]
    due_ages_s: Sequence[float | None]


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
    """What a report brought: claims that were lost or released, messages that became dead letters, or could not."""

    lost: list[Partition] = field(default_factory=list)
    released: list[Partition] = field(default_factory=list)
    buried: list[tuple[Partition, Entry]] = field(default_factory=list)
    refused: list[tuple[Partition, str]] = field(default_factory=list)


class Engine(Deliveries):
    """All claims, windows and deliveries of one coordinator."""

    def __init__(self, limits: Limits, wake: Callable[[], None], jitter: Callable[[], float] = lambda: 1.0) -> None:
        """`wake`: see Deliveries. `jitter` gives numbers between 0 and 1."""
        super().__init__(limits, wake)
        self._jitter = jitter
        self._expect = False
        self._linger_s = limits.linger_s
        self._sent_s = 0.0
        self._poll_s = limits.poll_min_s
        self._poll_at_s = 0.0
        self._gap_poll_s = limits.gap_poll_min_s
        self._gap_poll_at_s = 0.0
        self._parked_poll_at_s = 0.0
        self.exchange_count = 0
        self.poll_count = 0
        self.taken_back: list[tuple[Delivery, Verdict]] = []

    @property
    def idle(self) -> bool:
        """Every claim is read to V; nothing is missing, ready, in flight, parked or unsaved."""
        return all(
            partition.high < partition.hwm == partition.position
            and not (partition.ready or partition.urgent or partition.busy or partition.parked or partition.gaps)
            and not (partition.holds_unsaved or partition.uncertain or partition.lanes.waiting_count)
            for partition in self.partitions.values()
        )

    @property
    def active(self) -> bool:
        """Something is ready, in flight or waiting."""
        return any(
            partition.ready or partition.urgent or partition.busy or partition.lanes.waiting_count
            for partition in self.partitions.values()
        )

    def on_claimed(self, claim: Claim, now_s: float) -> Partition:
        """A claim was taken: everything that was remembered of the partition is void."""
        partition = self._claimed(claim, now_s)
        self.expect(now_s)
        return partition

    def expect(self, now_s: float) -> None:
        """Something was published, or may have been: look at once."""
        self._expect = True
        self._poll_s = self.limits.poll_min_s
        self._poll_at_s = now_s + self._poll_s
        self._poke(0.0)

    # ---- commands

    def next_command(self, now_s: float) -> Exchange | Resolve | Wait:
        """Say what the shell should do now. Deadlines that have passed are dealt with first."""
        self._waiting_until_s = NOT_WAITING
        self._unaware = False
        self.take_in()
        for ahead in self.aheads:
            if ahead.messages and (self.lonely is not None or now_s >= ahead.filled_s + STALL_S):
                self._reclaim(ahead)
        self.taken_back.extend(self._take_back(now_s, self._jitter))
        if self._start_later_s <= now_s:
            self._start_later_s = float("inf")
            for partition in self.partitions.values():
                self._queue(partition)
        uncertain = [p for p in self.partitions.values() if p.uncertain and now_s >= p.busy_until_s]
        if uncertain:
            return Resolve(uncertain)
        exchange = self._exchange(now_s)
        if exchange is not None:
            return exchange
        # While something settled waits for company, the shell looks again in time by itself.
        self._unaware = self._settled_since_s is None
        if self._noted:
            self._unaware = False
            self.take_in()
        self._waiting_until_s = self._wait_until_s(now_s)
        return Wait(self._waiting_until_s)

    def _wait_until_s(self, now_s: float) -> float:
        if not self.partitions:
            self._settled_since_s = None
            return float("inf")
        stopped = self.lonely is not None
        until_s = self._start_later_s
        if any(partition.busy_until_s <= now_s for partition in self.partitions.values()):
            until_s = min(until_s, self._poll_at_s)
            if not stopped:
                until_s = min(until_s, self._parked_poll_at_s)
            if self._settled_since_s is not None:
                until_s = min(until_s, self._settled_since_s + self._linger_s)
        for partition in self.partitions.values():
            if partition.busy_until_s > now_s:
                # Left alone until then, whatever there is to do for it.
                until_s = min(until_s, partition.busy_until_s)
                continue
            if partition.gaps:
                until_s = min(until_s, self._gap_poll_at_s)
            if partition.refused:
                until_s = min(until_s, partition.refused_until_s)
            if not (stopped or partition.revoking or partition.paused):
                until_s = min(until_s, partition.due_at_s)
        for ahead in self.aheads:
            if ahead.messages:
                until_s = min(until_s, ahead.filled_s + STALL_S)
        deadline_s = self.heap.next_deadline_s()
        return until_s if deadline_s is None else min(until_s, deadline_s)

    def _exchange(self, now_s: float) -> Exchange | None:
        partitions = [p for p in self.partitions.values() if not p.uncertain and now_s >= p.busy_until_s]
        if not partitions:
            return None
        self._send_refused(partitions, now_s)
        self._park_behind(partitions)
        emptying = self._empty_for_lonely(partitions, now_s)
        limits = self.limits
        stopped = self.lonely is not None
        wants = [0 if stopped else min(p.want(limits.max_holes, limits.max_parked), self._most) for p in partitions]
        known = any(p.position < p.hwm for p in partitions) or self._hungry(partitions, wants)
        linger_over = self._settled_since_s is not None and now_s >= self._settled_since_s + self._linger_s
        releases = [p for p in partitions if p.revoking and not p.busy and not p.holds_unsaved and not p.uncertain]
        looks = now_s >= self._parked_poll_at_s and not stopped
        due = [
            p
            for p in partitions
            if (looks or p.check_parked or now_s >= p.due_at_s)
            and not (stopped or p.revoking or p.paused or p.recovering)
        ]
        urgent = any(p.check_parked or now_s >= p.due_at_s for p in due)
        gaps_due = now_s >= self._gap_poll_at_s
        gapped = [p for p in partitions if p.gaps and not p.recovering and gaps_due]
        polls = now_s >= self._poll_at_s or looks
        if not (
            self._flush or self._expect or linger_over or releases or gapped or polls or known or urgent or emptying
        ):
            return None
        if not (self._flush or self._expect or linger_over or releases or gapped or known or urgent or emptying):
            self.poll_count += 1
        if looks:
            self._parked_poll_at_s = now_s + limits.parked_poll_s
        expects = self._expect or known or bool(gapped)
        self._flush = self._expect = False
        self._settled_since_s = None
        self._sent_s = now_s
        exchange = self._build(partitions, wants, expects, due, gaps_due, releases)
        if not stopped and self._most < UNBOUNDED:
            self._most *= 2
        return exchange

    @staticmethod
    def _hungry(partitions: Sequence[Partition], wants: Sequence[int]) -> bool:
        """Tell whether what is known to be there is worth an exchange of its own.

        A subscription's partitions are read together: one by one, each as it runs low, they would take as many round trips.
        """
        wanted: dict[int, int] = {}
        room: dict[int, int] = {}
        for partition, want in zip(partitions, wants, strict=True):
            subscription = id(partition.subscription)
            if partition.high >= partition.hwm:
                wanted[subscription] = wanted.get(subscription, 0) + (want if partition.runs_low else 0)
                room[subscription] = room.get(subscription, 0) + 3 * partition.window.size
            if partition.may_start():
                room[subscription] = room.get(subscription, 0) - 4 * (len(partition.ready) + len(partition.urgent))
        return any(want >= _WORTHWHILE or (want > 0 and room[key] >= 0) for key, want in wanted.items())

    def _build(
        self,
        partitions: Sequence[Partition],
        wants: Sequence[int],
        expects: bool,
        due: Sequence[Partition],
        gaps_due: bool,
        releases: Sequence[Partition],
    ) -> Exchange:
        hard: list[Entry] = []
        settled: list[Sequence[Range]] = []
        wakes_parked: list[Partition] = []
        for partition in partitions:
            self._settle_acked(partition)
            if partition.recovering:
                # Its window is being read again: what is done must be what resolve said, until that is in.
                partition.sent = None
                partition.sent_count = partition.saved_count
                settled.append(())
            else:
                settled.append(partition.next_settled())
        self._next_hard(partitions)
        for place, partition in enumerate(partitions, 1):
            entries = () if partition.recovering else partition.sent_hard
            for entry in entries:
                entry["o"] = place
            hard.extend(entries)
            if any(entry["k"] in _WAKES for entry in entries):
                wakes_parked.append(partition)
        for partition in wakes_parked:
            if self.lonely is not None or partition.paused:
                # What waited behind is handed out to us by that, and read later: when the message that runs alone, beside which
                # nothing is handed out, has ended, or when the pause has.
                partition.check_parked = True
        if self.lonely is not None:
            wakes_parked.clear()
        asked = {id(p): p for p in (*due, *wakes_parked) if not (p.revoking or p.paused or p.recovering)}
        fetching = [
            p
            for p, want in zip(partitions, wants, strict=True)
            if (p.position < p.hwm or (expects and want > 0)) and not p.revoking
        ]
        # In key order a straggler must be seen with what is read after it became visible, and not one pause of the poll later:
        # who publishes under the lock of a business row has his messages in order. The pass comes behind the other reads.
        together = {id(p) for p in (*fetching, *asked.values()) if p.subscription.by_key}
        gapped = [p for p in partitions if p.gaps and not p.recovering and (gaps_due or id(p) in together)]
        return Exchange(
            partitions,
            settled,
            wants,
            [p.sent_count for p in partitions],
            hard,
            fetching,
            list(asked.values()),
            [(p, p.gaps.ranges()) for p in gapped],
            releases,
            [min(self._most, partition.window.max_size, _MAX_DUE) for partition in asked.values()],
            [partition.due_age_s(self._sent_s) for partition in asked.values()],
        )

    def _next_hard(self, partitions: Sequence[Partition]) -> None:
        """Take what is more than an ack into the exchange, each time beginning with another partition.

        Everything a handler can make fail at once, of many partitions, would not be written within the time that a statement has.
        """
        room = _MAX_FAILURES
        start = self.exchange_count % max(len(partitions), 1)
        for partition in (*partitions[start:], *partitions[:start]):
            if not partition.recovering:
                room -= partition.next_hard(room)
                self._flush = self._flush or bool(partition.hard)

    def _settle_acked(self, partition: Partition) -> None:
        """A failure that was sent, acked late, and not written: it is an ack now."""
        for offset, failing in list(partition.failing.items()):
            if failing.acked and failing.entry in partition.hard and failing.entry["k"] == "retry":
                partition.hard.remove(failing.entry)
                self._end_failing(partition, offset)
                partition.settled.append(offset)
                # It may still be carried out late, or was parked before.
                partition.hard.append({"k": "clear", "offset": offset, "key": failing.row[4]})
                if offset not in partition.runs:
                    self._fold(partition, offset)
                self._leave(partition, failing.row)
                self._queue(partition)

    def _send_refused(self, partitions: Sequence[Partition], now_s: float) -> None:
        for partition in partitions:
            if partition.refused and now_s >= partition.refused_until_s:
                partition.hard.extend(partition.refused)
                partition.refused.clear()
                self._flush = True

    def _park_behind(self, partitions: Sequence[Partition]) -> None:
        """Move what waits behind parked messages into the table, where it would fill the window or the ranges of done."""
        if self.lonely is not None:
            return
        for partition in partitions:
            waiting = partition.lanes.waiting_count
            room = self.limits.max_parked - len(partition.parked)
            crowded = 2 * waiting > partition.window.size or (waiting and 2 * partition.holes > self.limits.max_holes)
            if crowded and room > 0 and not partition.recovering and not partition.revoking:
                for key, rows in partition.lanes.hoarders(min(waiting, room), partition.parked):
                    partition.hard.append({"k": "behind", "key": key, "offsets": [row[1] for row in rows]})

    def _empty_for_lonely(self, partitions: Sequence[Partition], now_s: float) -> bool:
        """Before a message runs alone: when nothing is in flight, take back all windows in one exchange."""
        lonely = self.lonely
        if (
            lonely is None
            or lonely.stage != "draining"
            or any(p.in_flight or len(p.failing) > len(p.refused) for p in self.partitions.values())
        ):
            return False
        if len(partitions) < len(self.partitions) or any(p.recovering for p in partitions):
            if any(p.busy_until_s > now_s for p in self.partitions.values()):
                # Somebody holds a claim's row, for who knows how long: the others must not stand still with it (R8).
                self._put_off(lonely)
                lonely.partition.hold_until_s = max(lonely.partition.hold_until_s, now_s + _PUT_OFF_S)
            return False
        if any(entry["k"] in _WAKES for partition in partitions for entry in partition.hard):
            # What waits behind a key is handed out with these: not in the exchange that leaves one message alone.
            self._flush = True
            return False
        for partition in partitions:
            partition.hard.append({"k": "empty"})
        lonely.partition.hard.append(
            {"k": "alone", "offset": lonely.row[1], "key": lonely.row[4], "replays": lonely.facts.replays}
        )
        lonely.stage = "emptying"
        return True

    # ---- reports

    def on_exchanged(
        self,
        exchange: Exchange,
        settled: Sequence[Settled],
        released: int,
        rows: Sequence[Row],
        evidence: Mapping[int, GapEvidence],
        due: Sequence[Due],
        parked: Sequence[Parked],
        now_s: float,
    ) -> Changes:
        """Take in the answer of an exchange. `rows[i].ord` counts `exchange.fetching` from 1, the others their own lists."""
        changes = Changes()
        self.exchange_count += 1
        dear_s = min(_LINGER_TIMES * (now_s - self._sent_s), _LINGER_MOST * self.limits.linger_s)
        self._linger_s = max(self.limits.linger_s, dear_s)
        gaps_before = sum(len(partition.gaps) for partition in exchange.fetching)
        for partition, answer, settled_count in zip(exchange.partitions, settled, exchange.settled_counts, strict=True):
            self._on_settled(partition, answer, settled_count, changes, now_s)
        self._on_emptied(exchange)
        for place, (partition, asked) in enumerate(exchange.gaps, 1):
            self._on_evidence(partition, asked, evidence.get(place))
        self._on_rows(exchange.fetching, rows)
        self._on_parked(exchange, due, parked, now_s)
        self._catch_up(exchange.partitions)
        self.take_in()
        if self._settled_since_s is not None:
            # Counted from here: what came in meanwhile would otherwise be sent at once, and what is read next a moment later.
            self._settled_since_s = now_s
        self._on_released(exchange.releases, released, changes)
        active = bool(rows) or bool(parked) or any(p.position < p.hwm for p in self.partitions.values())
        # A poll takes the acks along, so it must not come sooner than they would go.
        self._poll_s = max(self.limits.poll_min_s, dear_s) if active else min(2 * self._poll_s, self.limits.poll_max_s)
        self._poll_at_s = now_s + self._poll_s
        self._plan_gap_pass(exchange, evidence, gaps_before, now_s)
        return changes

    def on_failed(self, exchange: Exchange) -> None:
        """An exchange failed with an unknown outcome: nothing of its claims starts before it is resolved."""
        for partition in exchange.partitions:
            if not partition.lost:
                partition.uncertain = True
        if self.lonely is not None and self.lonely.stage in ("emptying", "void"):
            # What resolve finds decides, claim by claim: an exchange without the message's own must not be taken for this one.
            self.lonely = None

    def on_reconnected(self) -> None:
        """The connection is a new one: evidence is void, and every claim has to be looked at again."""
        for partition in self.partitions.values():
            partition.gaps.void()
            partition.uncertain = True
        self._poke(0.0)

    def on_resolved(self, resolve: Resolve, answers: Sequence[Resolved], now_s: float) -> Changes:
        """Take in the newest progress of uncertain claims.

        What was sent is found in it, or is written again. Anything older than what a COMMIT has confirmed means another
        history (a standby that lacked it was promoted): then all memory of the claim is void.
        """
        changes = Changes()
        for partition, answer in zip(resolve.partitions, answers, strict=True):
            if partition.lost:
                continue
            if answer.status == "busy":
                partition.busy_until_s = now_s + _BUSY_PAUSE_S
                continue
            # Under our epoch nobody else writes: what is newer than what we know is ours, or a late exchange of ours.
            if answer.status != "ok" or answer.seq < partition.seq:
                if partition.revoking and not partition.holds_unsaved:
                    changes.released.append(partition)
                else:
                    changes.lost.append(partition)
                self._drop(partition)
                continue
            self._on_outcome(partition, answer, changes, now_s)
            partition.recover(answer.seq, answer.committed, answer.hwm, answer.done, answer.acked)
            # With an empty window nothing is read again, and nothing else would put it back in the queue.
            self._queue(partition)
        self._settled_since_s = now_s if any(p.holds_unsaved for p in self.partitions.values()) else None
        self._expect = True
        return changes

    def _on_outcome(self, partition: Partition, answer: Resolved, changes: Changes, now_s: float) -> None:
        """Tell what of an exchange of unknown outcome was written: by what is there, not by its number.

        An exchange that was resolved as not written may be carried out late, by a backend that had received it before its
        connection was lost, and take the number of the one that was sent after it.
        """
        entries, partition.sent_hard = partition.sent_hard, []
        emptied = any(entry["k"] == "empty" for entry in entries)
        entries = [entry for entry in entries if entry["k"] not in ("empty", "alone")]
        advanced = answer.seq > partition.seq
        certain = advanced and partition.sent is not None and not partition.unproven
        if advanced and partition.unproven:
            # What was given up as not written, and is to be written again, may be there by now.
            entries, partition.hard = entries + partition.hard, []
        written = [entry for entry in entries if _is_written(partition, answer, entry, certain=certain)]
        again = [entry for entry in entries if entry not in written]
        missing = [
            part for sent in partition.sent or () for part in subtract(sent, [(0, answer.committed), *answer.done])
        ]
        if partition.sent is not None and not missing and not again:
            partition.saved_count = max(partition.sent_count, partition.saved_count)
        partition.unproven = not advanced and (partition.unproven or partition.sent is not None)
        partition.sent = None
        partition.unsent = merge(partition.unsent, missing)
        partition.sent_hard = written
        self._on_hard_saved(partition, _nothing_refused, changes, now_s)
        partition.hard = again + partition.hard
        if emptied or partition.exposed:
            # Whether the window was taken back is in what is read now; nothing of memory may outlive it.
            partition.forget_unstarted()
            partition.exposed = not advanced
        if emptied:
            if not advanced:
                # Carried out late, it would take the window from under what has started since, and an ack of that would be
                # cut off. This entry changes nothing; but behind its write that exchange is stale.
                partition.hard.append({"k": "fold", "offsets": []})
                self._flush = True
            if self.lonely is not None and self.lonely.partition is partition:
                self.lonely = None

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
            partition.holes = answer.holes or 0
            refused = frozenset(answer.refused or ())
            self._on_hard_saved(partition, refused.__contains__, changes, now_s)
            for offset in refused & partition.failing.keys():
                failing = partition.failing[offset]
                if failing.refused is None:
                    self._no_longer_counts(partition)
                failing.refused = answer.refusal or ""
            if refused:
                changes.refused.append((partition, answer.refusal or ""))
            if partition.crashes and all(crash.offsets[-1][1] <= answer.committed for crash in partition.crashes):
                partition.crashes = ()
                partition.window.widen(self.limits.max_window)
                partition.hard.append({"k": "charged", "committed": answer.committed})
                self._linger(now_s)
        elif answer.status == "idle":
            # There was nothing to write, so everything is written.
            partition.sent = None
            partition.saved_count = max(partition.saved_count, settled_count)
        elif answer.status == "busy":
            partition.on_not_saved()
            partition.busy_until_s = now_s + _BUSY_PAUSE_S
            self._settled_since_s = now_s
        elif answer.status == "stale":
            partition.uncertain = True
        else:
            self._drop(partition)
            changes.lost.append(partition)

    def _on_hard_saved(
        self, partition: Partition, refused: Callable[[int], bool], changes: Changes, now_s: float
    ) -> None:
        entries, partition.sent_hard = partition.sent_hard, []
        for entry in entries:
            kind = entry["k"]
            if kind == "retry":
                self._on_parked_by_us(partition, entry, now_s)
            elif kind == "dead":
                failing = partition.failing.get(entry["offset"])
                if refused(entry["offset"]):
                    # Nothing advanced; tried again, not faster than this, whatever else is written meanwhile.
                    partition.refused.append(entry)
                    partition.refused_until_s = now_s + _REFUSED_PAUSE_S
                elif failing is not None:
                    self._end_failing(partition, entry["offset"])
                    self._forget(partition, failing.row)
                    self._leave(partition, failing.row)
                    changes.buried.append((partition, entry))
                    partition.subscription.counts.bury(entry["reason"])
                if entry["guard"] and not refused(entry["offset"]):
                    # The acks row that keeps runs of it from committing stays until the last of them has ended.
                    partition.unfolded.add(entry["offset"])
                    if entry["offset"] not in partition.runs:
                        self._fold(partition, entry["offset"])
                        self._linger(now_s)
            elif kind == "behind":
                partition.parked.update(dict.fromkeys(entry["offsets"], entry["key"]))
            elif kind == "clear":
                partition.parked.pop(entry["offset"], None)
                partition.replayed.pop(entry["offset"], None)
                partition.handed.discard(entry["offset"])
            elif kind == "alone":
                partition.parked[entry["offset"]] = entry["key"]
            elif kind == "empty":
                # The window is taken back: nothing of it may start. What is done above the committed offset is not
                # remembered here; resolve reads it.
                partition.forget_unstarted()
                partition.uncertain = True
        self._queue(partition)

    def _on_parked_by_us(self, partition: Partition, entry: Entry, now_s: float) -> None:
        offset = entry["offset"]
        partition.parked[offset] = entry["key"]
        failing = self._end_failing(partition, offset)
        if failing is None:
            return
        row, facts = failing.row, failing.facts
        if failing.acked:
            # Handed out still, as far as the table knows: what was read of it with this exchange must not start.
            partition.handed.add(offset)
            partition.subscription.counts.acked += 1
            self._leave(partition, row)
            partition.hard.append({"k": "clear", "offset": offset, "key": entry["key"]})
            if offset not in partition.runs:
                self._fold(partition, offset)
            self._linger(now_s)
        elif entry["running"]:
            partition.facts[offset] = facts._replace(fails=facts.fails + 1, late=True)
            partition.handed.add(offset)
            partition.urgent.appendleft(row)
        else:
            partition.facts.pop(offset, None)
            partition.handed.discard(offset)
            if partition.subscription.by_key:
                self._urge(partition, partition.lanes.park(row[4], offset))
            partition.due_at_s = min(partition.due_at_s, now_s + entry["delay_s"])

    def _forget(self, partition: Partition, row: Row) -> None:
        partition.parked.pop(row[1], None)
        partition.replayed.pop(row[1], None)
        partition.handed.discard(row[1])
        partition.facts.pop(row[1], None)

    def _on_emptied(self, exchange: Exchange) -> None:
        """All windows were taken back, or not: then somebody's row was locked, and it is tried again."""
        lonely = self.lonely
        if lonely is None or lonely.stage not in ("emptying", "void"):
            return
        left = any(_is_emptying(partition) for partition in exchange.partitions)
        for partition in exchange.partitions:
            partition.hard = [entry for entry in partition.hard if entry["k"] not in ("empty", "alone")]
        if lonely.stage == "void":
            self.lonely = None
            for partition in self.partitions.values():
                self._queue(partition)
            return
        if left:
            lonely.stage = "draining"
            return
        lonely.partition.handed.add(lonely.row[1])
        lonely.partition.facts[lonely.row[1]] = lonely.facts
        lonely.stage = "ready"

    def _on_rows(self, fetching: Sequence[Partition], rows: Sequence[Row]) -> None:
        runs: list[list[Row]] = [[] for _ in fetching]
        for row in rows:
            runs[row[0] - 1].append(row)
        for partition, run in zip(fetching, runs, strict=True):
            if not partition.lost and not partition.uncertain:
                partition.on_read(run)
                if partition.revoking:
                    partition.forget_unstarted()
                self._queue(partition)

    def _on_evidence(self, partition: Partition, asked: Sequence[Range], evidence: GapEvidence | None) -> None:
        if evidence is None or partition.lost or partition.uncertain or partition.recovering:
            return
        burnt = partition.gaps.on_pass(asked, evidence.high, evidence.holders, [row[1] for row in evidence.rows])
        partition.unsent.extend(burnt)
        if burnt:
            self._flush = True
        partition.on_appeared(evidence.rows)
        if partition.revoking:
            partition.forget_unstarted()
        self._queue(partition)

    def _on_parked(self, exchange: Exchange, due: Sequence[Due], parked: Sequence[Parked], now_s: float) -> None:
        asked = exchange.parked
        for partition, age_s, answer in zip(asked, exchange.due_ages_s, due, strict=True):
            partition.check_parked = False
            partition.due_at_s = float("inf") if answer.due_in_s is None else now_s + max(answer.due_in_s, 0.001)
            next_s = self._sent_s if answer.due_in_s is None else min(self._sent_s, now_s + answer.due_in_s)
            partition.on_due_looked_at(next_s, self._sent_s if age_s is None else None)
        for row, facts in parked:
            partition = asked[row[0] - 1]
            offset = row[1]
            if partition.lost or partition.uncertain or partition.revoking or offset in partition.handed:
                continue
            if offset in partition.in_flight or offset in partition.failing:
                continue
            partition.parked[offset] = row[4]
            if facts.replays:
                partition.replayed[offset] = facts.replays
            partition.handed.add(offset)
            partition.facts[offset] = facts
            if partition.subscription.by_key and row[4] is not None:
                partition.ahead.append(row)
            else:
                self._urge(partition, row)
            self._queue(partition)

    def _catch_up(self, partitions: Sequence[Partition]) -> None:
        """Let parked messages up to which this epoch has read take their turn: what is before them is in memory now (R18)."""
        for partition in partitions:
            if not partition.ahead or partition.lost or partition.uncertain or partition.recovering:
                continue
            everything = partition.at_bound(self.limits.max_holes, self.limits.max_parked)
            reached = [row for row in partition.ahead if everything or row[1] < partition.position]
            partition.ahead = [row for row in partition.ahead if not (everything or row[1] < partition.position)]
            if not reached:
                continue
            partition.enter_lanes({row[4] for row in reached})
            for row in reached:
                self._urge(partition, partition.lanes.unpark(row))
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

    def _plan_gap_pass(
        self, exchange: Exchange, evidence: Mapping[int, GapEvidence], gaps_before: int, now_s: float
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


# Entries whose offset becomes done with them; the others may be sent twice.
# Entries with which something that is parked may be handed out.
_WAKES = ("clear", "dead", "behind")


def _is_written(partition: Partition, answer: Resolved, entry: Entry, *, certain: bool) -> bool:
    """Tell whether an entry of an exchange of unknown outcome is in the tables.

    A message that was open is done then. Other entries leave no mark in the progress: they are known to be there when the
    exchange is (certain); in doubt they are written again, which can at most charge a failure once more.
    """
    if entry["k"] in FAILURES and entry["offset"] not in partition.parked:
        return entry["offset"] < answer.committed or contains(answer.done, entry["offset"])
    return certain


def _is_emptying(partition: Partition) -> bool:
    return partition.lost or any(entry["k"] in ("empty", "alone") for entry in (*partition.hard, *partition.sent_hard))


def _nothing_refused(_offset: int) -> bool:
    return False
