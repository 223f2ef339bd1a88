"""Coordinators, publishers and faults under a virtual clock: one seed, one history.

Everything that a real system interleaves is an event here: a command travels to the database, its transaction commits, its
reads see snapshots between which publishers go on, and its answer travels back or gets lost. Events of the server happen
whatever becomes of the client; events of a frozen process wait for it to go on, those of a killed one never happen.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import TYPE_CHECKING
from uuid import UUID

from support.engine_driver import NACK, Request, commit
from support.fake_database import FakeDatabase, LockedError
from support.laws import Laws

from coordinator.consumer.membership import moves, plan_of
from coordinator.core.ahead import Ahead
from coordinator.core.loop import Engine, Exchange, Limits, Resolve, Subscription, Wait
from coordinator.core.retry import Exponential, RetryPolicy
from coordinator.errors import AlreadySettledError, MemberDeadError, Reject, StaleEpochError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from support.fake_database import Publisher

    from coordinator.core.loop import Changes
    from coordinator.model import GroupState, Message, PartitionKey

LEASE_S = 2.0
SELF_FENCE_S = 0.4
HEARTBEAT_S = 0.5
POLL_S = 0.4
VISIBILITY_S = 1.0
# A history takes up to 4,000; a mutant may go round for ever.
MOST_STEPS = 20_000
POLICY = RetryPolicy(max_attempts=4, max_crashes=3, delays=Exponential(base_s=0.05, cap_s=0.5))


@dataclass(frozen=True)
class Faults:
    """Probabilities, per occasion, until `Scenario.faulty_s` is over; 0 turns a fault off.

    lost_before, lost_after: the connection breaks before the database has the exchange, or before its answer is back.
    late: the connection breaks, and the database carries out what it has received at some time after.
    refused: a statement behind the commit fails, and the connection survives. lock: somebody locks a claim's row.
    freeze: a process stops as if by SIGSTOP. mute: its control loop is cut off, and its work loop goes on.
    kill, stop: a process ends, by force or by the book, and another comes. stuck, slow: handlers that never settle, or late.
    nack, reject: handlers that fail. roll_back: a transactional handler's COMMIT fails. lost_commit: its answer gets lost.
    replay: somebody gives all dead letters of a claim back. refuse: a dead letter can't be stored for a while. outage: what
    a handler needs is not there, which is charged to nobody.
    """

    lost_before: float = 0.0
    lost_after: float = 0.0
    late: float = 0.0
    refused: float = 0.0
    lock: float = 0.0
    freeze: float = 0.0
    mute: float = 0.0
    kill: float = 0.0
    stop: float = 0.0
    stuck: float = 0.0
    slow: float = 0.0
    nack: float = 0.0
    extend: float = 0.0
    rollback: float = 0.0
    long_publisher: float = 0.0
    reject: float = 0.0
    roll_back: float = 0.0
    lost_commit: float = 0.0
    replay: float = 0.0
    refuse: float = 0.0
    outage: float = 0.0


NO_FAULTS = Faults()


@dataclass(frozen=True)
class Scenario:
    """What there is, how long faults and publishing go on, and how long after that everything has to be settled."""

    topics: dict[int, int]
    groups: dict[int, list[int]]
    processes: int
    workers: int
    batch: int
    max_window: int
    faults: Faults
    publishers: int = 30
    faulty_s: float = 3.0
    calm_s: float = 40.0
    ordering: str = "partition"
    keys: int = 0
    transactional: bool = False
    policy: RetryPolicy = POLICY
    max_holes: int = 256
    max_parked: int = 10_000
    poison: frozenset[tuple[int, int, int]] = field(default_factory=frozenset)
    # So many messages each worker takes at once, to start them one by one; 0: it takes `batch`, and starts them together.
    ahead: int = 0


class Greedy(Ahead):
    """Takes as many as it may, however long they take."""

    def next_count(self, _now_s: float) -> int:
        return self._most


class Process:
    """One coordinator: work loop, control loop, workers."""

    def __init__(self, simulation: Simulation, number: int) -> None:
        self.simulation = simulation
        self.database = simulation.database
        self.laws = simulation.laws
        self.number = number
        self.dead = False
        self.stopping = False
        self.aheads: dict[int, Ahead] = {}
        self.frozen_until_s = 0.0
        self.muted_until_s = 0.0
        self.connected_s = simulation.now_s
        self._working = False
        self._wakes = 0
        self._spins = (0.0, 0)
        scenario = simulation.scenario
        limits = Limits(
            visibility_timeout_s=VISIBILITY_S,
            max_window=scenario.max_window,
            max_holes=scenario.max_holes,
            max_parked=scenario.max_parked,
            poll_max_s=0.5,
            parked_poll_s=0.3,
        )
        self.engine = Engine(limits, self._wake, simulation.random.random)
        for group, topics in scenario.groups.items():
            for topic in topics:
                self.engine.subscribe(
                    Subscription(
                        f"g{group}",
                        group,
                        f"t{topic}",
                        topic,
                        None,
                        ordering=scenario.ordering,
                        policy=scenario.policy,
                        transactional=scenario.transactional,
                    )
                )
        self.idle_workers = list(range(scenario.workers))
        self.running: dict[int, list[Message]] = {}
        self._join()
        self.after(0.0, self._reconcile)
        self._work()

    def tell(self, text: str) -> None:
        self.simulation.tell(f"process {self.number}: {text}")

    def after(self, delay_s: float, step: Callable[[], None]) -> None:
        self.simulation.at(self.simulation.now_s + delay_s, step, self)

    # ---- the work loop

    def _wake(self) -> None:
        if not self._working:
            self._wakes += 1
            self.after(0.0, self._work_if(self._wakes))

    def _work_if(self, wakes: int) -> Callable[[], None]:
        def work() -> None:
            if wakes == self._wakes and not self._working:
                self._work()

        return work

    def _work(self) -> None:
        now_s = self.simulation.now_s
        command = self.engine.next_command(now_s)
        late, self.engine.taken_back = self.engine.taken_back, []
        for delivery, verdict in late:
            self.laws.on_fail(delivery.owner, delivery, verdict.reason)
        self._feed()
        if isinstance(command, Wait):
            self._working = False
            self._note_wait(command, now_s)
            self._wakes += 1
            if command.until_s < float("inf"):
                self.after(max(command.until_s - now_s, 0.0), self._work_if(self._wakes))
        elif isinstance(command, Exchange):
            self._working = True
            self._send_exchange(command)
        else:
            self._working = True
            self._send_resolve(command)

    def _note_wait(self, command: Wait, now_s: float) -> None:
        last_s, times = self._spins
        self._spins = (now_s, times + 1 if now_s == last_s and command.until_s <= now_s else 0)
        assert self._spins[1] < 20, f"spins: waits for {command.until_s} at {now_s}"

    def _send_exchange(self, command: Exchange) -> None:
        chance, faults, latency_s = self.simulation.random, self.simulation.faults, self.simulation.latency_s
        fate = chance.random()
        if fate < faults.lost_before:
            self.tell("its exchange is lost on the way")
            self.after(latency_s(), lambda: self._failed(command, reconnect=True))
            return
        late = chance.random() < faults.late
        lost = late or fate < faults.lost_before + faults.lost_after
        refused = not lost and fate < faults.lost_before + faults.lost_after + faults.refused
        me = self.id
        request = Request.of(command)
        if lost or refused:
            what = (
                "carried out late, its answer is lost"
                if late
                else "answer is lost"
                if lost
                else "reading behind it fails"
            )
            self.tell(f"its exchange: {what}")

        def on_server() -> None:
            settled, released, due = commit(self.database, me, request)
            self.laws.on_committed()
            if late:
                return
            if lost:
                self.after(latency_s(), lambda: self._failed(command, reconnect=True))
            elif refused:
                self.after(latency_s(), lambda: self._failed(command, reconnect=False))
            else:
                self.simulation.at(self.simulation.now_s + latency_s() / 4, lambda: reads(settled, released, due))

        def reads(settled: list, released: int, due: list) -> None:
            database, between, seen = self.database, self.simulation.publish_a_little, []
            parked = database.fetch_retries(request.parked)
            seen.append((request.parked, [row for row, _ in parked], database.ticks))
            between()
            rows = database.fetch(request.reads)
            seen.append((request.reads, rows, database.ticks))
            between()
            evidence = database.gap_pass(request.gaps, between)
            appeared = [row for entry in evidence.values() for row in entry.rows]
            seen.append(([(p.key, p.epoch) for p, _ in command.gaps], appeared, database.ticks))
            self.after(latency_s(), lambda: answered(settled, released, rows, evidence, due, parked, seen))

        def answered(
            settled: list, released: int, rows: list, evidence: dict, due: list, parked: list, seen: list
        ) -> None:
            now_s = self.simulation.now_s
            for asked, found, tick in seen:
                for row in found:
                    key, epoch, *_ = asked[row.ord - 1]
                    self.laws.on_read(key, epoch, [row.offset], tick)
            changes = self.engine.on_exchanged(command, settled, released, rows, evidence, due, parked, now_s)
            for partition, answer in zip(command.partitions, settled, strict=True):
                if answer.status == "ok":
                    self.laws.on_known(partition.key, answer.seq)
            self._changed(changes, [*command.partitions])
            self._work()

        if late:
            self.after(latency_s(), lambda: self._failed(command, reconnect=True))
        delay_s = chance.uniform(0.0, 0.1) if late else latency_s()
        self.simulation.at(self.simulation.now_s + delay_s, on_server)

    def _failed(self, command: Exchange | Resolve, *, reconnect: bool) -> None:
        if isinstance(command, Exchange):
            self.engine.on_failed(command)
        if reconnect:
            self.engine.on_reconnected()
        self.after(self.simulation.random.uniform(0.02, 0.05), self._work)

    def _send_resolve(self, command: Resolve) -> None:
        chance, faults, latency_s = self.simulation.random, self.simulation.faults, self.simulation.latency_s
        if chance.random() < faults.lost_before:
            self.after(latency_s(), lambda: self._failed(command, reconnect=True))
            return
        me = self.id

        def on_server() -> None:
            answers = self.database.resolve(me, [(p.key, p.epoch) for p in command.partitions])
            self.after(latency_s(), lambda: answered(answers))

        def answered(answers: list) -> None:
            changes = self.engine.on_resolved(command, answers, self.simulation.now_s)
            for partition, answer in zip(command.partitions, answers, strict=True):
                if answer.status == "ok":
                    self.laws.on_known(partition.key, answer.seq)
            self._changed(changes, [*command.partitions])
            self._work()

        self.simulation.at(self.simulation.now_s + latency_s(), on_server)

    def _changed(self, changes: Changes, partitions: list) -> None:
        for partition in partitions:
            self.laws.on_saved(partition)
        self.laws.on_engine(self.engine)
        if changes.lost or changes.released:
            self.after(0.0, self._look)
        self._feed()

    # ---- the control loop

    def _join(self) -> None:
        self.id = UUID(int=self.simulation.random.getrandbits(64))
        self.database.register(self.id, LEASE_S)
        for group, topics in self.simulation.scenario.groups.items():
            self.database.join(self.id, group, topics)
        self.engine.on_lease(self.simulation.now_s + LEASE_S - SELF_FENCE_S)

    def _reconcile(self) -> None:
        self._look()
        self.after(self.simulation.random.uniform(0.8, 1.0) * POLL_S, self._reconcile)

    def _look(self) -> None:
        """Heartbeat, reap, plan; then claim, revoke and drop, each a little later."""
        sent_s = self.simulation.now_s
        if sent_s < self.muted_until_s:
            # Its connection is a new one by then, and judges nobody before it has seen a whole lease.
            self.connected_s = self.muted_until_s
            return
        try:
            self.database.heartbeat(self.id)
        except MemberDeadError:
            self._rejoin()
            return
        self.simulation.on_dead(self.database.reap(sent_s - self.connected_s))
        held_before = set(self.engine.partitions)
        states = self._planned()
        self.after(self.simulation.latency_s(), lambda: self._move(states, held_before, sent_s, self.id))

    def _planned(self) -> list[GroupState]:
        groups = sorted(self.database.groups)
        states = self.database.group_state(groups)
        for state in states:
            owners = plan_of(state, self.id)
            if owners is not None:
                self.database.store_plan(state.group_id, state.version, owners)
        return self.database.group_state(groups)

    def _move(self, states: list[GroupState], held_before: set[PartitionKey], sent_s: float, me: UUID) -> None:
        if me != self.id:
            return
        self.engine.on_lease(sent_s + LEASE_S - SELF_FENCE_S)
        self._feed()
        found = moves(states, me, set(self.engine.partitions), held_before=held_before)
        claims = []
        if found.wanted and not self.stopping:
            try:
                claims = self.database.claim(me, found.wanted)
            except MemberDeadError:
                self._rejoin()
                return

        def apply() -> None:
            if me != self.id:
                return
            self.engine.drop(found.lost)
            self.engine.revoke(found.surplus)
            for claim in claims:
                self.laws.on_known(claim.key, claim.seq)
                self.engine.on_claimed(claim, self.simulation.now_s)
            self._feed()

        self.after(self.simulation.latency_s(), apply)

    def _rejoin(self) -> None:
        self.engine.drop(list(self.engine.partitions))
        self.database.withdraw_charge(self.id)
        self.laws.on_withdrawn()
        if self.stopping:
            self.dead = True
        else:
            self._join()

    def stop(self) -> None:
        """Leave gracefully."""
        self.stopping = True
        self.engine.abandon(self.engine.subscriptions.values())
        self.engine.drain()
        self.engine.flush()
        self._leave_when_free(self.simulation.now_s + 1.0)

    def _leave_when_free(self, deadline_s: float) -> None:
        if self.engine.partitions and self.simulation.now_s < deadline_s:
            self.after(0.02, lambda: self._leave_when_free(deadline_s))
        else:
            self.database.leave(self.id)
            self.dead = True

    # ---- workers

    def _feed(self) -> None:
        subscriptions = list(self.engine.subscriptions.values())
        while self.idle_workers:
            batch = self._next(self.idle_workers[-1], subscriptions)
            if not batch:
                return
            places = [f"{tuple(m.delivery.owner.key)}@{m.offset}" for m in batch]
            self.tell(f"starts {', '.join(places)} in epoch {batch[0].epoch}, attempt {batch[0].attempt}")
            self.laws.on_start(batch, self.simulation.now_s)
            self._handle(self.idle_workers.pop(), batch)

    def _next(self, worker: int, subscriptions: list[Subscription]) -> list[Message]:
        """As `start_ahead` and `take` of the shells."""
        scenario, now_s = self.simulation.scenario, self.simulation.now_s
        if not scenario.ahead:
            return self.engine.take(subscriptions, scenario.batch, now_s)
        ahead = self.aheads.get(worker)
        if ahead is None:
            ahead = self.aheads[worker] = Greedy(scenario.ahead)
            self.engine.aheads.append(ahead)
        message = ahead.start() if self.may_start else None
        if message is not None:
            self.simulation.started_ahead += 1
            return [message]
        return self.engine.take(subscriptions, 1, now_s, ahead)

    @property
    def may_start(self) -> bool:
        """Its own clock says that its lease is not over."""
        return self.simulation.now_s < self.engine.lease_until_s

    @property
    def runs(self) -> list[tuple[PartitionKey, int]]:
        """What its handlers are at."""
        return [(m.delivery.owner.key, m.offset) for batch in self.running.values() for m in batch]

    def _handle(self, worker: int, batch: list[Message]) -> None:
        chance, faults = self.simulation.random, self.simulation.faults
        self.running[worker] = batch
        if self.simulation.scenario.transactional:
            for message in batch:
                self.engine.begin_run(message.delivery)
        if any((*m.delivery.owner.key[1:], m.offset) in self.simulation.scenario.poison for m in batch):
            self.after(chance.uniform(0.001, 0.03), lambda: self.simulation.replace(self, kill=True))
            return
        duration_s = chance.uniform(0.001, 0.03)
        fate = chance.random()
        if fate < faults.stuck:
            # Never settled: its deadline takes it back, and the worker is free again some time after.
            self.after(2 * VISIBILITY_S, lambda: self._done(worker, []))
            return
        if fate < faults.stuck + faults.slow:
            duration_s = chance.uniform(0.8, 3.0) * VISIBILITY_S
        if chance.random() < faults.extend:
            self.after(duration_s / 2, lambda: self._settle(batch, self._extend))
        one = self._ending(chance.random())
        if one == self._ack and self.simulation.scenario.transactional:
            self.after(duration_s, lambda: self._commit(worker, batch))
        else:
            self.after(duration_s, lambda: self._done(worker, batch, one))

    def _ending(self, fate: float) -> Callable[[Message], None]:
        """What a handler says at its end."""
        faults = self.simulation.faults
        if fate < faults.nack:
            return self._nack
        if fate < faults.nack + faults.reject:
            return self._reject
        if fate < faults.nack + faults.reject + faults.outage:
            return self._give_back
        return self._ack

    def _done(self, worker: int, batch: list[Message], one: Callable[[Message], None] | None = None) -> None:
        if one == self._ack and self.simulation.random.random() < 0.5 and all(m.delivery.live for m in batch):
            self._note_acks(batch)
        elif one is not None:
            self._settle(batch, one)
        ended = self.running.pop(worker)
        if self.simulation.scenario.transactional:
            for message in ended:
                self.engine.end_run(message.delivery)
        self.idle_workers.append(worker)
        self._feed()

    def _commit(self, worker: int, batch: list[Message]) -> None:
        """The end of a transactional run: the fence and the acks rows, then COMMIT; its answer may get lost on the way."""
        chance, faults = self.simulation.random, self.simulation.faults
        me, now_s = self.id, self.simulation.now_s
        delay_s = self.simulation.latency_s() * (100 if chance.random() < faults.lost_commit else 1)
        refused = chance.random() < faults.roll_back

        def on_server() -> None:
            by_claim: dict[PartitionKey, list[Message]] = {}
            for message in batch:
                by_claim.setdefault(message.delivery.owner.key, []).append(message)
            try:
                if refused:
                    raise LockedError
                if len(by_claim) > 1 and any(not self._may_ack(me, key, mine) for key, mine in by_claim.items()):
                    raise StaleEpochError
                for key, mine in by_claim.items():
                    replays = [m.delivery.facts.replays if m.delivery.facts else 0 for m in mine]
                    self.database.ack(me, key, mine[0].epoch, [m.offset for m in mine], replays)
                    self.laws.on_acks_in_transaction(key, [m.offset for m in mine])
                self.laws.on_committed()
            except LockedError:
                self.after(delay_s, lambda: self._done(worker, batch, self._nack))
            except StaleEpochError:
                self.after(delay_s, lambda: self._done(worker, batch, self._give_back))
            except AlreadySettledError:
                self.after(delay_s, lambda: self._done(worker, batch, self._refused))
            else:
                self.after(delay_s, lambda: self._done(worker, batch, self._acked))

        self.simulation.at(now_s + self.simulation.latency_s(), on_server)

    def _may_ack(self, me: UUID, key: PartitionKey, messages: list[Message]) -> bool:
        claim = self.database.claims[key]
        return (
            claim.owner == me
            and claim.epoch == messages[0].epoch
            and key not in self.database.locked
            and not any((m.offset, m.delivery.facts.replays if m.delivery.facts else 0) in claim.acks for m in messages)
        )

    def _settle(self, batch: list[Message], one: Callable[[Message], None]) -> None:
        self.tell(f"{one.__name__.strip('_')}: {', '.join(f'{tuple(m.delivery.owner.key)}@{m.offset}' for m in batch)}")
        for message in batch:
            try:
                one(message)
            except StaleEpochError:
                self.simulation.stale_count += 1

    def _ack(self, message: Message) -> None:
        before = message.delivery.owner.settled_count
        partition = self.engine.ack(message.delivery, self.simulation.now_s)
        self.laws.on_ack(partition, message.delivery, before)

    def _note_acks(self, batch: list[Message]) -> None:
        """Ack as a handler's thread does, without the lock; each is live, so each counts."""
        before = [message.delivery.owner.settled_count for message in batch]
        for message in batch:
            self.engine.note_ack(message.delivery, self.simulation.now_s)
        self.engine.take_in()
        for message, counted in zip(batch, before, strict=True):
            self.laws.on_ack(message.delivery.owner, message.delivery, counted)

    def _acked(self, message: Message) -> None:
        self.laws.on_told(message.delivery.owner.key, message.offset)
        self.engine.acked_in_transaction(message.delivery, self.simulation.now_s)

    def _refused(self, message: Message) -> None:
        """Another run was first, or a dead letter; as `_tell_settled` of the shells."""
        partition = message.delivery.owner
        replays = message.delivery.facts.replays if message.delivery.facts else 0
        if (message.offset, replays) in self.database.claims[partition.key].acks:
            before = partition.settled_count
            self.engine.acked_in_transaction(message.delivery, self.simulation.now_s)
            self.laws.on_ack(partition, message.delivery, before)
        self._give_back(message)

    def _nack(self, message: Message) -> None:
        self._fail(message, None)

    def _reject(self, message: Message) -> None:
        self._fail(message, Reject("no"))

    def _fail(self, message: Message, error: BaseException | None) -> None:
        jitter = self.simulation.random.random()
        verdict = self.engine.fail(message.delivery, error, NACK, self.simulation.now_s, jitter)
        if verdict is not None:
            self.laws.on_fail(message.delivery.owner, message.delivery, verdict.reason)

    def _give_back(self, message: Message) -> None:
        self.engine.give_back(message.delivery, self.simulation.now_s, 0.1)

    def _extend(self, message: Message) -> None:
        now_s = self.simulation.now_s
        self.engine.extend(message.delivery, now_s + 2 * VISIBILITY_S, now_s)


class Simulation:
    """Runs one scenario from one seed.

    Every look at the faults is a decision, numbered from 0: `only` names those at which a fault may happen at all, so that a
    schedule can be made shorter (support/shrinking.py). `story` is what happened, for people.
    """

    def __init__(self, scenario: Scenario, seed: int, only: Collection[int] | None = None) -> None:
        self.scenario = scenario
        self.only = only
        self.decisions = 0
        self.story: list[str] = []
        self._calm = False
        self.steps = 0
        self.random = Random(seed)
        self.now_s = 0.0
        self.started_ahead = 0
        self.database = FakeDatabase(scenario.topics, scenario.groups)
        self.laws = Laws(self.database, scenario.ordering)
        self.stale_count = 0
        self.publishers: list[Publisher] = []
        self._events: list[tuple[float, int, Process | None, Callable[[], None]]] = []
        self._serial = count()
        self.processes = [Process(self, number) for number in range(scenario.processes)]

    @property
    def faults(self) -> Faults:
        """What may happen at this decision."""
        number = self.decisions
        self.decisions += 1
        allowed = not self._calm and (self.only is None or number in self.only)
        return self.scenario.faults if allowed else NO_FAULTS

    def tell(self, text: str) -> None:
        self.story.append(f"{self.now_s:6.3f}  {text}")

    def at(self, at_s: float, step: Callable[[], None], process: Process | None = None) -> None:
        heapq.heappush(self._events, (at_s, next(self._serial), process, step))

    def latency_s(self) -> float:
        return self.random.uniform(0.0003, 0.003)

    def run(self) -> None:
        """Publish under faults, then let everything come to rest; laws are checked throughout, L1 at the end."""
        for _ in range(self.scenario.publishers):
            self.at(self.random.uniform(0.0, self.scenario.faulty_s), self._publisher)
        for _ in range(int(10 * self.scenario.faulty_s)):
            self.at(self.random.uniform(0.0, self.scenario.faulty_s), self._harm)
        self._until(self.scenario.faulty_s)
        self._calm_down()
        end_s = self.now_s + self.scenario.calm_s
        # A process that was being replaced, or a lease of the dead, may still move something.
        self._until(self.now_s + 1.5 * LEASE_S)
        while True:
            self._until(self.now_s + 0.5)
            try:
                self._check_rest()
            except AssertionError:
                if self.now_s >= end_s:
                    raise
            else:
                break
        epochs = {key: claim.epoch for key, claim in self.database.claims.items()}
        self._until(self.now_s + 3 * POLL_S)
        assert epochs == {key: claim.epoch for key, claim in self.database.claims.items()}, (
            "L1: moves after the balance"
        )
        self._check_rest()

    def _until(self, end_s: float) -> None:
        while self._events and self._events[0][0] <= end_s:
            at_s, serial, process, step = heapq.heappop(self._events)
            self.steps += 1
            assert self.steps < MOST_STEPS, f"spins: {MOST_STEPS} steps by {self.now_s}"
            self.now_s = self.database.now_s = max(self.now_s, at_s)
            if process is not None and process.dead:
                continue
            if process is not None and process.frozen_until_s > self.now_s:
                heapq.heappush(self._events, (process.frozen_until_s, serial, process, step))
                continue
            step()
        self.now_s = self.database.now_s = end_s

    # ---- publishers

    def _publisher(self) -> None:
        publisher = self.database.begin()
        self.publishers.append(publisher)
        for _ in range(self.random.choice((1, 1, 2, 4))):
            name = self.random.randrange(self.scenario.keys + 1) if self.scenario.keys else 0
            place = self.random.choice(list(self.database.logs))
            offset = self.database.publish(publisher, *place, f"k{name}" if name else None)
            self.tell(f"publisher {publisher.name}: {place}@{offset}")
        if self.random.random() < self.faults.long_publisher:
            self.at(self.now_s + self.random.uniform(0.1, 1.0), lambda: self._end(publisher))
        elif self.random.random() < 0.5:
            self.at(self.now_s + self.random.uniform(0.0, 0.01), lambda: self._end(publisher))
        else:
            self._end(publisher)

    def _end(self, publisher: Publisher) -> None:
        if publisher.open:
            self.publishers.remove(publisher)
            commit = self.random.random() >= self.faults.rollback
            self.tell(f"publisher {publisher.name}: {'commits' if commit else 'rolls back'}")
            self.database.end(publisher, commit=commit)

    def publish_a_little(self) -> None:
        """Between two snapshots of a round trip: end an open publisher, or run one from begin to commit."""
        if self.publishers and self.random.random() < 0.2:
            self._end(self.random.choice(self.publishers))
        elif self.now_s < self.scenario.faulty_s and self.random.random() < 0.05:
            self._publisher()

    # ---- faults

    def _harm(self) -> None:
        faults, chance = self.faults, self.random
        living = [process for process in self.processes if not process.dead]
        if chance.random() < faults.lock:
            key = chance.choice(list(self.database.claims))
            self.database.locked.add(key)
            self.tell(f"somebody locks the claim {tuple(key)}")
            self.at(self.now_s + chance.uniform(0.0, 0.3), lambda: self.database.locked.discard(key))
        if living and chance.random() < faults.freeze:
            process = chance.choice(living)
            process.frozen_until_s = self.now_s + chance.uniform(0.1, 2 * LEASE_S)
            process.tell(f"frozen until {process.frozen_until_s:.3f}")
        if living and chance.random() < faults.mute:
            process = chance.choice(living)
            process.muted_until_s = self.now_s + chance.uniform(LEASE_S / 2, 2 * LEASE_S)
            process.tell(f"its control loop is cut off until {process.muted_until_s:.3f}")
        if living and chance.random() < faults.kill:
            self.replace(chance.choice(living), kill=True)
        if living and chance.random() < faults.stop:
            process = chance.choice(living)
            if process.frozen_until_s <= self.now_s and not process.stopping:
                self.replace(process, kill=False)
        if chance.random() < faults.replay:
            self._replay(chance.choice(list(self.database.claims)))
        if chance.random() < faults.refuse:
            key = chance.choice(list(self.database.claims))
            self.tell(f"dead letters of {tuple(key)} can't be stored")
            refused = {(key, offset) for offset in range(self.database.logs[key[1:]].high + 1)}
            self.database.unstorable |= refused
            self.at(self.now_s + chance.uniform(0.0, 2.0), lambda: self.database.unstorable.difference_update(refused))

    def _replay(self, key: PartitionKey) -> None:
        if key in self.database.locked:
            return
        for offset, outcome in self.database.replay(
            key, sorted(self.database.claims[key].dead), self.scenario.max_parked
        ):
            if outcome == "replayed":
                self.tell(f"replay of {tuple(key)}@{offset}")
                self.laws.on_replayed(key, offset)

    def on_dead(self, coordinators: list[UUID]) -> None:
        """Coordinators were declared dead; some may be alive, frozen or cut off."""
        for process in self.processes:
            if process.id in coordinators and not process.dead:
                self.laws.on_end(process.runs)

    def replace(self, process: Process, *, kill: bool) -> None:
        if process.dead:
            return
        process.tell("killed" if kill else "told to stop")
        if kill:
            process.dead = True
            self.laws.on_end(process.runs)
        else:
            process.stop()
        number = len(self.processes)
        self.at(self.now_s + self.random.uniform(0.0, 1.0), lambda: self.processes.append(Process(self, number)))

    def _calm_down(self) -> None:
        self._calm = True
        self.tell("the faults are over")
        self.database.locked.clear()
        self.database.unstorable.clear()
        for publisher in list(self.publishers):
            self._end(publisher)
        for process in self.processes:
            process.frozen_until_s = min(process.frozen_until_s, self.now_s)
            process.muted_until_s = min(process.muted_until_s, self.now_s)
            process.connected_s = min(process.connected_s, self.now_s)

    def _check_rest(self) -> None:
        """L1: everything published is settled, everything is owned, evenly."""
        living = [process for process in self.processes if not process.dead]
        owners = {process.id: 0 for process in living}
        for key, claim in self.database.claims.items():
            log = self.database.logs[key[1:]]
            assert claim.owner in owners, f"L1: {key} is owned by {claim.owner}, which is not one of {list(owners)}"
            owners[claim.owner] += 1
            assert claim.newest.committed == log.high + 1, f"L1: {key} is not settled to {log.high}: {claim.newest}"
            laws = self.laws.claims[key]
            missing = log.rows.keys() - laws.worked
            assert not missing, f"I4: {key} lost {sorted(missing)}"
            assert not claim.retries, f"L1: {key} has parked messages: {claim.retries}"
            assert not claim.crashes, f"I2: {key} keeps crash rows below {claim.newest}: {claim.crashes}"
            assert not claim.acks, f"R1: {key} keeps acks rows of which no run is alive: {claim.acks}"
            # I12: exactly the dead are in the dead letters, and every one once.
            assert laws.settled.keys() == log.rows.keys(), f"I1: {key}: {laws.settled.keys() ^ log.rows.keys()}"
        for group_id in self.database.groups:
            loads = [
                sum(claim.owner == owner for key, claim in self.database.claims.items() if key.group_id == group_id)
                for owner in owners
            ]
            assert max(loads) - min(loads) <= 1, f"L1: group {group_id} is spread as {loads}"
        for process in living:
            assert process.engine.idle, f"L1: coordinator {process.number} is not idle"
