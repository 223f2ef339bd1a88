"""The consumer shell in threads: one coordinator, its work loop, its control loop.

Two connections: the work loop's carries exchanges and nothing else; the control loop's carries heartbeats, membership and
LISTEN, so that a slow exchange delays no heartbeat. One lock guards the engine; no I/O is done while it is held.
"""

import contextlib
import logging
import random
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar
from uuid import UUID, uuid4

import psycopg

from coordinator.consumer.counting import CLOCK_LOOK_S, Counting
from coordinator.consumer.health import findings
from coordinator.consumer.listening import ListenCheck, WakeUps, problems_of
from coordinator.consumer.membership import (
    Stuck,
    check_there,
    enter,
    entering,
    group_ids,
    look_again_s,
    looking,
    move,
    moves,
    process_count,
    watching,
)
from coordinator.consumer.options import Options, handlers_pool_size, limits_of, rejection
from coordinator.consumer.pacing import (
    CHORES_LIMIT,
    CHORES_PAUSE_S,
    LONGEST_WAIT_S,
    OUTAGE_PAUSE_S,
    RELEASE_PATIENCE_S,
    SERVER_LOOK_S,
    CpuGuard,
    Restarts,
    is_hung,
    jittered_s,
    pause_s,
)
from coordinator.consumer.requests import exchange_call, on_answer, release_statement, resolve_statement
from coordinator.consumer.saving import Goals, all_unsaved, check_lost, not_in_time, reached, read_to_end
from coordinator.consumer.status import Status, status_of
from coordinator.consumer.telling import partition_fields, tell_changes, tell_late, tell_verdict
from coordinator.consumer.transaction import transaction
from coordinator.core.loop import Engine, Exchange, Resolve, Subscription, Wait
from coordinator.core.partition import Partition
from coordinator.core.retry import Failure
from coordinator.core.sessions import Sessions
from coordinator.db import exchange as wire
from coordinator.db.blockers import blockers
from coordinator.db.connect import Pool, connect, let_prepare, listen_statement
from coordinator.db.drive import drive, follow
from coordinator.db.pooler import with_pooler
from coordinator.db.schema import protocol_checked
from coordinator.db.translate import translated
from coordinator.db.upkeep import Upkeep
from coordinator.db.watchdog import Watchdog
from coordinator.errors import (
    CoordinatorError,
    LoopFailedError,
    MemberDeadError,
    MemberReplacedError,
    UnavailableError,
)
from coordinator.model import Claim, Message, Settler
from coordinator.observe import events
from coordinator.observe.health import Finding
from coordinator.observe.logs import said
from coordinator.observe.meter import METER
from coordinator.protocol import admin, groups
from coordinator.protocol.maintenance import maintain_publishing
from coordinator.protocol.placeholder import render
from coordinator.protocol.statement import Flow, Statement
from coordinator.settings import Settings

log = logging.getLogger("coordinator")

T = TypeVar("T")


class Runtime:
    """One coordinator in threads. `lock` guards the engine; `changed` is notified when something may have become ready."""

    def __init__(self, dsn: str, schema: str, settings: Settings, client_id: str, static_id: str | None = None) -> None:
        self.dsn = dsn
        self.schema = schema
        self.settings = settings
        self.client_id = client_id
        self.static_id = static_id
        self.id: UUID = uuid4()
        self.failure: BaseException | None = None
        self.assigned = False
        # When a connection of our own was last found broken, monotonic.
        self.broken_s = float("-inf")
        self._cpu = CpuGuard(settings.pause_above_cpu)
        self._wake = threading.Event()
        self.engine = Engine(limits_of(settings), self._wake.set, random.random)
        self.counting = Counting(self.engine)
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self._options: list[Options] = []
        self._settler: Settler | None = None
        self._joined = False
        self._upkeep = Upkeep()
        self._alive_after_all: UUID | None = None
        # Which history of the database all memory is of (R4), and who this was in the one before.
        self.history: str | None = None
        self._listening = ListenCheck(uuid4())
        self.counting.hears = lambda: self._listening.wake_ups != "deaf"
        self._left_behind: UUID | None = None
        self._claiming = False
        # Threads that wait in `take`; changed under the lock.
        self._takers = 0
        self._process_count = 1
        self._stuck = Stuck()
        # Since when the work loop is at something; None while it waits.
        self._busy_since_s: float | None = None
        self._look_again_s = float("inf")
        self._channels: set[str] = set()
        self._stopping = threading.Event()
        self._nudges: tuple[socket.socket, socket.socket] | None = None
        self._first_connection: psycopg.Connection[Any] | None = None
        self._watchdog = Watchdog(settings.round_trip_timeout_s)
        self._handlers_pool: Pool | None = None
        self._work = threading.Thread(
            target=self._supervise, args=(self._work_loop,), name="coordinator-work", daemon=True
        )
        self._control = threading.Thread(
            target=self._supervise, args=(self._control_loop,), name="coordinator-control", daemon=True
        )

    # ---- life

    def start(self, options: Iterable[Options], settler: Settler) -> None:
        """Register and join in the caller's thread, so that what is wrong is raised here; then start the loops.

        Args:
            options: One per subscription.
            settler: Gets what handlers say of their deliveries.
        """
        self._options = list(options)
        self._settler = settler
        self.id = uuid4()
        connection = self._connect("control")
        try:
            with self._watchdog.watch(connection):
                drive(protocol_checked(self.schema), connection, self.schema)
                self.settings = drive(with_pooler(self.settings, connection.info.backend_pid), connection, self.schema)
            let_prepare(connection, self.settings.prepares)
            try:
                self._join(connection)
            except BaseException:
                # Nobody must wait a lease for a member that never came.
                with contextlib.suppress(CoordinatorError, psycopg.Error):
                    self._run(connection, groups.leave(self.id))
                raise
        except BaseException:
            connection.close()
            raise
        self._nudges = socket.socketpair()
        for end in self._nudges:
            end.setblocking(False)
        self._first_connection = connection
        METER.enter(self.counting)
        self._watchdog.start()
        self._control.start()
        self._work.start()

    def stop(self, timeout_s: float) -> bool:
        """Write what is settled, release, leave; True if everything was released in time. Nothing may start any more.

        Without a database there is only the lease that gives the claims back: then it is waited for unsaved acks alone.
        """
        deadline_s = time.monotonic() + timeout_s
        patience_s = time.monotonic() + min(timeout_s, RELEASE_PATIENCE_S)
        with self.changed:
            self.engine.abandon(self.engine.subscriptions.values())
            self.engine.drain()
            self.engine.flush()
            while (self.engine.partitions or self._claiming) and self.failure is None and time.monotonic() < deadline_s:
                unsaved = any(partition.holds_unsaved for partition in self.engine.partitions.values())
                if time.monotonic() >= patience_s and not unsaved:
                    break
                self.changed.wait(min(0.5, max(deadline_s - time.monotonic(), 0)))
            released = not self.engine.partitions
        self._stopping.set()
        self._wake.set()
        self._nudge()
        for thread in (self._work, self._control):
            if thread.ident is not None:
                thread.join(max(deadline_s - time.monotonic(), 1.0))
                if thread.is_alive():
                    # It waits for a server that does not answer.
                    self._watchdog.cut()
                    thread.join(1.0)
        self._watchdog.stop()
        if self._handlers_pool is not None:
            self._handlers_pool.close()
        METER.leave(self.counting)
        nudges, self._nudges = self._nudges, None
        for end in nudges or ():
            end.close()
        return released

    def dead_loops(self) -> list[str]:
        """Names of the loops that have ended and should not have."""
        if self._stopping.is_set():
            return []
        return [
            name
            for name, thread in (("work", self._work), ("control", self._control))
            if thread.ident is not None and not thread.is_alive()
        ]

    @property
    def wake_ups(self) -> WakeUps:
        """How new messages are noticed, see ListenCheck."""
        return self._listening.wake_ups

    def silent_s(self) -> float:
        """How long the oldest round trip under way has been waiting."""
        return self._watchdog.silent_s()

    def findings(self) -> list[Finding]:
        """What is wrong with this coordinator now; from any thread."""
        return findings(self)

    def check(self) -> None:
        """Raise what ended a loop: a process whose loop is dead must not look alive."""
        if self.failure is not None:
            raise LoopFailedError(f"a background loop of the coordinator ended: {self.failure!r}") from self.failure

    # ---- what handlers' threads call

    def take(self, subscriptions: Sequence[Subscription], max_count: int, timeout_s: float | None) -> list[Message]:
        """Wait until messages may start, and hand them over; empty after the timeout, or when the coordinator stops."""
        with self.changed:
            now_s = time.monotonic()
            taken = self.engine.take(subscriptions, max_count, now_s)
            if taken:
                if now_s >= self.counting.sample_at_s:
                    self.counting.taken(taken[0])
                return taken
            # Before the first look: an ack that is noted after it sees that somebody waits.
            self._takers += 1
            try:
                taken = self._await_some(subscriptions, max_count, timeout_s)
            finally:
                self._takers -= 1
            if taken:
                self.counting.taken(taken[0])
            return taken

    def _await_some(
        self, subscriptions: Sequence[Subscription], max_count: int, timeout_s: float | None
    ) -> list[Message]:
        """Wait with the lock held."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            taken = self.engine.take(subscriptions, max_count, time.monotonic())
            if taken or self._stopping.is_set() or self.engine.draining:
                return taken
            self.check()
            left_s = 1.0 if deadline_s is None else deadline_s - time.monotonic()
            if left_s <= 0:
                return taken
            self.changed.wait(min(left_s, 1.0))

    def ack(self, message: Message, *, wait: bool) -> None:
        """Settle; see Message.ack."""
        delivery = message.delivery
        assert delivery is not None
        if not wait:
            self.engine.note_ack(delivery, time.monotonic())
            if self._takers:
                with self.changed:
                    self.engine.take_in()
                    if delivery.owner.subscription.runnable:
                        self.changed.notify()
            return
        with self.changed:
            partition = self.engine.ack(delivery, time.monotonic())
            if partition.subscription.runnable:
                self.changed.notify()
            self._wait_saved([(partition, partition.settled_count)])

    def nack(self, message: Message, delay_s: float | None) -> None:
        """Give back as failed; see Message.nack."""
        self.fail(message, None, Failure("nack"), delay_s=delay_s)

    def reject(self, message: Message, reason: str) -> None:
        """Make it a dead letter; see Message.reject."""
        self.fail(message, *rejection(reason))

    def fail(
        self, message: Message, error: BaseException | None, failure: Failure, *, delay_s: float | None = None
    ) -> None:
        """Take the failure of a delivery; ignored when it is not live any more."""
        assert message.delivery is not None
        with self.changed:
            verdict = self.engine.fail(
                message.delivery,
                error,
                failure,
                time.monotonic(),
                random.random(),  # noqa: S311
                delay_s=delay_s,
            )
            self.changed.notify()
        tell_verdict(message, verdict)

    def give_back(self, message: Message) -> None:
        """Take a delivery back without a charge."""
        assert message.delivery is not None
        with self.changed:
            self.engine.give_back(message.delivery, time.monotonic(), OUTAGE_PAUSE_S)

    def extend(self, message: Message, seconds: float) -> bool:
        """Move the deadline; see Message.extend."""
        assert message.delivery is not None
        with self.lock:
            now_s = time.monotonic()
            return self.engine.extend(message.delivery, now_s + seconds, now_s)

    def transaction(
        self, messages: Sequence[Message], connection: object = None
    ) -> "contextlib.AbstractContextManager[psycopg.Connection[Any]]":
        """A transaction in which messages are acked at the end; see Message.transaction."""
        return transaction(self, messages, connection)

    def handlers_pool(self) -> Pool:
        """Connections for handlers' transactions; nothing of ours limits them but their number."""
        with self.lock:
            if self._handlers_pool is None:
                self._handlers_pool = Pool(
                    self.dsn,
                    self.schema,
                    handlers_pool_size(self._options, self.settings),
                    self.settings.pool_timeout_s,
                    self.settings.connect_timeout_s,
                    f"coordinator handlers {self.client_id}"[:63],
                    prepare=self.settings.prepare,
                    pooled=self.settings.pooled,
                    for_handlers=True,
                )
            return self._handlers_pool

    def commit(self) -> None:
        """Return when everything settled so far is durable.

        Raises:
            StaleEpochError: Some of it belongs to claims that were lost, now or since the last commit; the rest was waited for.
            UnavailableError: Not in time.
        """
        with self.changed:
            self._wait_saved(*all_unsaved(self.engine))

    def wait_idle(self, timeout_s: float) -> bool:
        """Tell whether everything there is right now was read and settled; looks at the database once to say yes."""
        deadline_s = time.monotonic() + timeout_s
        with self.changed:
            seen = self.engine.exchange_count
            self.engine.expect(time.monotonic())
            while time.monotonic() < deadline_s:
                self.check()
                answer = read_to_end(self.engine, seen, assigned=self.assigned)
                if answer is not None:
                    return answer
                if self.engine.exchange_count < seen + 2:
                    self.engine.expect(time.monotonic())
                self.changed.wait(0.02)
            return False

    def _wait_saved(self, goals: Goals, lost_before: Sequence[Partition] = ()) -> None:
        """Wait with the lock held."""
        deadline_s = time.monotonic() + self.settings.commit_timeout_s
        self.engine.flush()
        while not reached(goals):
            self.check()
            if time.monotonic() >= deadline_s:
                raise not_in_time(self.settings.commit_timeout_s)
            self.engine.flush()
            self.changed.wait(0.5)
        check_lost(self.engine, goals, lost_before)

    # ---- the work loop

    def _work_loop(self) -> None:
        connection: psycopg.Connection[Any] | None = None
        history: str | None = None
        failures = 0
        try:
            while not self._stopping.is_set():
                self._wake.clear()
                self._busy_since_s = time.monotonic()
                with self.changed:
                    command, built_in = self.engine.next_command(time.monotonic()), self.history
                    if any(subscription.runnable for subscription in self.engine.subscriptions.values()):
                        self.changed.notify_all()
                self._tell_late()
                if isinstance(command, Wait) and not (connection is not None and self._listening.wanted):
                    self._busy_since_s = None
                    if not self.engine.partitions:
                        # It needs no database.
                        self.counting.away_since_s.pop("work", None)
                    self._wake.wait(min(max(command.until_s - time.monotonic(), 0.0), LONGEST_WAIT_S))
                    continue
                try:
                    if connection is None:
                        connection = self._connect("work")
                        history = self._note_history(connection)
                    if history != self.history:
                        raise _superseded()
                    if built_in not in (None, history):
                        # Of a history that is gone: it may name an epoch that this one hands out again.
                        continue
                    if isinstance(command, Wait):
                        self._ring(connection)
                    else:
                        self._carry_out(connection, command)
                    self.counting.away_since_s.pop("work", None)
                    if failures:
                        log.info(events.CONNECTION_RESTORED, extra={"failures": failures})
                    failures = 0
                except (UnavailableError, psycopg.Error) as error:
                    failures += 1
                    self.broken_s = time.monotonic()
                    self.counting.away_since_s.setdefault("work", self.broken_s)
                    log.warning(events.EXCHANGE_FAILED, extra={"error": said(error), "failures": failures})
                    with self.changed:
                        if isinstance(command, Exchange):
                            self.engine.on_failed(command)
                        if connection is not None and (connection.closed or isinstance(error, UnavailableError)):
                            connection.close()
                            connection = None
                            self.engine.on_reconnected()
                    self._busy_since_s = None
                    self._stopping.wait(pause_s(failures))
        finally:
            if connection is not None:
                connection.close()

    def _ring(self, connection: psycopg.Connection[Any]) -> None:
        """Send the notification by which the control loop knows that it hears."""
        with self.lock:
            self._listening.sending()
        self._run(connection, admin.notify(render(self._listening.channel, self.schema)))
        with self.lock:
            self._listening.sent(time.monotonic())

    def _carry_out(self, connection: psycopg.Connection[Any], command: Exchange | Resolve) -> None:
        if isinstance(command, Exchange):
            began_s = time.monotonic()
            with self._watchdog.watch(connection):
                answer = wire.run(connection, self.schema, exchange_call(self.id, command))
            now_s = time.monotonic()
            self.counting.exchanged(command, len(answer.rows), began_s, now_s)
            with self.changed:
                changes = on_answer(self.engine, command, answer, now_s)
                self.changed.notify_all()
        else:
            answers = self._run(connection, resolve_statement(self.id, command))
            with self.changed:
                changes = self.engine.on_resolved(command, answers, time.monotonic())
                self.changed.notify_all()
        tell_changes(changes, self._options)
        if changes.lost or changes.released:
            self._nudge()

    def _tell_late(self) -> None:
        """Log deadlines that have passed, and handlers that take longer than the visibility timeout."""
        with self.lock:
            slow, self.engine.slow = self.engine.slow, []
            late, self.engine.taken_back = self.engine.taken_back, []
        tell_late(slow, late, time.monotonic())

    # ---- the control loop

    def _control_loop(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                connection = self._first_connection or self._connect("control")
                self._first_connection = None
                try:
                    self._control_session(connection)
                finally:
                    self.counting.listening = False if self.settings.listens else None
                    connection.close()
                failures = 0
            except (UnavailableError, psycopg.Error) as error:
                failures += 1
                self.broken_s = time.monotonic()
                self.counting.away_since_s.setdefault("control", self.broken_s)
                log.warning(events.CONNECTION_LOST, extra={"error": said(error), "failures": failures})
                self._stopping.wait(pause_s(failures))

    def _control_session(self, connection: psycopg.Connection[Any]) -> None:
        """Heartbeats, membership and wake-ups over one unbroken connection."""
        observed_since_s = time.monotonic()
        heartbeat_at_s = membership_at_s = maintenance_at_s = clock_at_s = sessions_at_s = 0.0
        sessions: Sessions[UUID] = Sessions()
        announced: UUID | None = None
        history = self._note_history(connection)
        self._listen(connection)
        self.counting.away_since_s.pop("control", None)
        assert self._nudges is not None
        with selectors.DefaultSelector() as selector:
            selector.register(connection.fileno(), selectors.EVENT_READ)
            selector.register(self._nudges[0], selectors.EVENT_READ)
            while not self._stopping.is_set():
                now_s = time.monotonic()
                try:
                    if history != self.history:
                        raise _superseded()
                    if not self._joined:
                        self._join(connection)
                        heartbeat_at_s = membership_at_s = 0.0
                    if announced != self.id and not self.settings.pooled:
                        self._run(connection, groups.hold_session(self.id, connection.info.backend_pid))
                        announced = self.id
                    with self.lock:
                        ring = self._listening.ask(now_s)
                    if ring:
                        self._wake.set()
                    if now_s >= heartbeat_at_s:
                        self._heartbeat(connection)
                        heartbeat_at_s = now_s + jittered_s(self.settings.heartbeat_s)
                    if now_s >= sessions_at_s:
                        if self._follow(connection, watching(sessions, now_s - observed_since_s, now_s)):
                            membership_at_s = 0.0
                        sessions_at_s = sessions.next_look_s(self._process_count, now_s, random.random())  # noqa: S311
                    if now_s >= membership_at_s:
                        self._reconcile(connection, now_s - observed_since_s, history)
                        membership_at_s = now_s + min(jittered_s(self.settings.membership_poll_s), self._look_again_s)
                    if now_s >= maintenance_at_s:
                        maintenance_at_s = now_s + self._maintain(connection)
                    if now_s >= clock_at_s:
                        self._look_at_clock(connection)
                        clock_at_s = now_s + CLOCK_LOOK_S
                    self._hold_back(now_s)
                except MemberReplacedError:
                    self._end_replaced()
                    self._run(connection, groups.withdraw_charge(self.id))
                    raise
                except MemberDeadError:
                    self._start_over()
                    continue
                if self._notified(
                    connection,
                    selector,
                    min(
                        heartbeat_at_s,
                        membership_at_s,
                        maintenance_at_s,
                        sessions_at_s,
                        self._listening.next_s(),
                        self._cpu.next_s,
                    ),
                ):
                    membership_at_s = 0.0
        self._leave(connection)

    def _maintain(self, connection: psycopg.Connection[Any]) -> float:
        """Move scheduled messages that are due, and one step of retention; returns seconds until the next time."""
        try:
            done = self._run(connection, maintain_publishing(CHORES_LIMIT))
        except psycopg.Error as error:
            log.warning(events.MAINTENANCE_FAILED, extra={"error": said(error)})
            return CHORES_PAUSE_S
        return min(done.next_s, max(self._upkeep.step(partial(self._run, connection), time.monotonic()), 0.0))

    def _look_at_clock(self, connection: psycopg.Connection[Any]) -> None:
        sent_s = time.time()
        server_s = self._run(connection, admin.clock())
        self.counting.clock_read(server_s, sent_s, time.time())

    def _notified(self, connection: psycopg.Connection[Any], selector: selectors.BaseSelector, until_s: float) -> bool:
        """Wait for a wake-up; True if the membership should be looked at."""
        look = False
        # A notification may have been read along with an answer: then the socket stays silent.
        with translated(connection):
            channels = [notify.channel for notify in connection.notifies(timeout=0)]
        if not channels:
            for key, _ in selector.select(max(until_s - time.monotonic(), 0.0)):
                if isinstance(key.fileobj, socket.socket):
                    key.fileobj.recv(4096)
                    look = True
            with translated(connection):
                channels = [notify.channel for notify in connection.notifies(timeout=0)]
        if channels:
            with self.lock:
                self._listening.heard(time.monotonic())
        groups_channel = render("coordinator.groups", self.schema)
        if set(channels) - {groups_channel, render(self._listening.channel, self.schema)}:
            self.counting.notified_count += 1
            with self.lock:
                self.engine.expect(time.monotonic())
        return look or groups_channel in channels

    def _heartbeat(self, connection: psycopg.Connection[Any]) -> None:
        if not self._work.is_alive() or self._work_hangs():
            return
        sent_s = time.monotonic()
        self._run(connection, groups.heartbeat(self.id))
        self._on_lease(sent_s)

    def _work_hangs(self) -> bool:
        """A process whose work loop does not come round (a hook that never returns) must not stay alive by its heartbeats."""
        busy_since_s, settings = self._busy_since_s, self.settings
        hangs = is_hung(busy_since_s, time.monotonic(), settings.round_trip_timeout_s, settings.connect_timeout_s)
        if hangs and busy_since_s is not None:
            log.error(events.LOOP_HUNG, extra={"loop": "work", "hung_s": time.monotonic() - busy_since_s})
        return hangs

    def _hold_back(self, now_s: float) -> None:
        """Start nothing while the machine is too busy, where the settings say so."""
        busy = self._cpu.busy(now_s)
        if busy != self.engine.held_back:
            with self.changed:
                self.engine.held_back = busy
                self.changed.notify_all()

    def saw_outage(self, since_s: float) -> bool:
        """Tell, a moment after a handler has lost its connection, whether our own were lost too: then it is not its doing."""
        self._stopping.wait(SERVER_LOOK_S)
        return self.broken_s >= since_s

    def status(self) -> Status:
        """What this coordinator is doing right now."""
        with self.lock:
            now_s = time.monotonic()
            return status_of(
                self.engine,
                self.id,
                now_s,
                wake_ups=self._listening.wake_ups,
                clock_skew_s=self.counting.clock_skew_s,
                problems=problems_of(
                    dict(self.counting.away_since_s),
                    self._watchdog.silent_s(),
                    self.engine.lease_until_s,
                    self.failure,
                    now_s,
                ),
            )

    def _on_lease(self, sent_s: float) -> None:
        with self.changed:
            self.engine.on_lease(sent_s + self.settings.lease_s - self.settings.self_fence_margin_s)
            self.changed.notify_all()

    def _reconcile(self, connection: psycopg.Connection[Any], observed_s: float, history: str | None) -> None:
        """Compare what is held with what the plans say; plan where nobody has."""
        states = self._follow(
            connection, looking(self.id, group_ids(self.engine), observed_s, self.settings.rebalance_debounce_s)
        )
        self._look_again_s = look_again_s(states, self.id, self.settings.rebalance_debounce_s)
        self._process_count = process_count(states)
        with self.lock:
            held = set(self.engine.partitions)
            self._claiming = not self.engine.draining
        found = moves(states, self.id, held, self.settings.hand_over_s)
        claims: list[Claim] = []
        try:
            if found.wanted and self._claiming:
                claims = self._run(connection, groups.claim(self.id, found.wanted, self.settings.hand_over_s))
        finally:
            with self.changed:
                if history != self.history:
                    # Taken from a server that others have left meanwhile.
                    claims = []
                self.counting.moved(claims, found)
                lost = move(self.engine, found, claims, time.monotonic())
                self.assigned = found.complete(claims)
                self._claiming = False
                self.changed.notify_all()
        for partition in lost:
            log.warning(events.PARTITION_LOST, extra=partition_fields(partition))
        check_there(self.engine, states)
        if self._stuck.due(states, found, claims, time.monotonic()):
            self._name_blockers(connection)

    def _name_blockers(self, connection: psycopg.Connection[Any]) -> None:
        """Look who holds claims that nobody alive owns, and say so; end them where the settings allow it."""
        stuck = self._run(connection, groups.stuck_claims(group_ids(self.engine)))
        if not stuck:
            return
        try:
            probe = self._connect("probe")
        except UnavailableError:
            # No connection left for it; the next look tries again.
            return
        try:
            with self._watchdog.watch(connection):
                found, ended = blockers(connection, probe, self.schema, stuck[0].key, end=self.settings.end_blockers)
        finally:
            probe.close()
        self._stuck.on_found(stuck, found, ended, time.monotonic())

    def _join(self, connection: psycopg.Connection[Any]) -> None:
        """Register and join every group; harmless when it is repeated after it was cut off half-way."""
        if self._alive_after_all is not None:
            # It was declared dead and charged with a crash, and is alive.
            self._run(connection, groups.withdraw_charge(self._alive_after_all))
            self._alive_after_all = None
        if self._left_behind is not None:
            self._run(connection, groups.give_up(self._left_behind))
            self._left_behind = None
        assert self._settler is not None
        sent_s = time.monotonic()
        joined = self._follow(
            connection, entering(self.id, self.client_id, self.static_id, self.settings, self._options)
        )
        with self.lock:
            self._channels |= enter(self.engine, joined, self._settler)
        self._joined = True
        self._on_lease(sent_s)

    def _note_history(self, connection: psycopg.Connection[Any]) -> str | None:
        """Look which history of the database a new connection sees; where it is another one, all memory is void (R4)."""
        told = self._run(connection, admin.history())
        with self.changed:
            if told is None:
                return self.history
            before, self.history = self.history, told
            if before is None or before == told:
                return told
            lost = self.engine.drop(list(self.engine.partitions))
            self._left_behind, self.id = self._left_behind or self.id, uuid4()
            self._joined = False
            self.changed.notify_all()
        self._nudge()
        log.warning(events.HISTORY_CHANGED, extra={"before": before, "now": told, "partitions": len(lost)})
        return told

    def _start_over(self) -> None:
        """This coordinator was declared dead: drop everything and come back as a new one."""
        with self.changed:
            lost = self.engine.drop(list(self.engine.partitions))
            old, self.id = self.id, uuid4()
            self._joined = False
            self._alive_after_all = old
            self.changed.notify_all()
        self.counting.lease_losses += 1
        log.warning(events.MEMBER_FENCED, extra={"member": str(old), "partitions": len(lost)})

    def _end_replaced(self) -> None:
        """Another process has the static id: nothing of this one's counts any more, and it must not come back."""
        with self.changed:
            lost = self.engine.drop(list(self.engine.partitions))
            self.changed.notify_all()
        log.error(events.MEMBER_REPLACED, extra={"member": str(self.id), "partitions": len(lost)})

    def _leave(self, connection: psycopg.Connection[Any]) -> None:
        # A claim that was under way when `stop` had lost patience: the work loop has ended, and nobody else releases it.
        with self.lock:
            left = list(self.engine.partitions.values())
        if left:
            self._run(connection, release_statement(self.id, left))
            with self.changed:
                self.engine.drop([partition.key for partition in left])
                self.changed.notify_all()
        self._run(connection, groups.leave(self.id, keep=self.static_id is not None))
        log.info(events.MEMBER_LEFT, extra={"member": str(self.id)})

    def _listen(self, connection: psycopg.Connection[Any]) -> None:
        if not self.settings.listens:
            return
        with translated(connection), self._watchdog.watch(connection):
            ours = ("coordinator.groups", self._listening.channel)
            for channel in sorted({*self._channels, *(render(name, self.schema) for name in ours)}):
                connection.execute(listen_statement(channel))
        self.counting.listening = True
        self._listening.begin(time.monotonic())
        # What was published before LISTEN took effect was not told.
        with self.lock:
            self.engine.expect(time.monotonic())

    # ---- shared

    def _run(self, connection: psycopg.Connection[Any], statement: Statement[T]) -> T:
        with self._watchdog.watch(connection):
            return wire.run_alone(connection, self.schema, statement)

    def _follow(self, connection: psycopg.Connection[Any], flow: Flow[T]) -> T:
        return follow(flow, lambda statement: self._run(connection, statement))

    def _connect(self, purpose: str) -> psycopg.Connection[Any]:
        return connect(
            self.dsn,
            self.settings.connect_timeout_s,
            f"coordinator {purpose} {self.client_id}"[:63],
            prepare=self.settings.prepares,
        )

    def _nudge(self) -> None:
        """Make the control loop look at the membership now."""
        # An error: full, so it will look anyway; or closed, because it has stopped.
        with contextlib.suppress(OSError):
            if self._nudges is not None:
                self._nudges[1].send(b"x")

    def _supervise(self, loop: Callable[[], None]) -> None:
        """Run one of the two loops, and again a few times when it ends by an error; then that ends the whole."""
        restarts = Restarts()

        def again() -> None:
            while True:
                try:
                    return loop()
                except MemberReplacedError:
                    # It would only be told once more.
                    raise
                except Exception:
                    if self._stopping.is_set() or not restarts.allow(time.monotonic()):
                        raise
                    log.exception(events.LOOP_RESTARTED)
                    self._forget()
                self._stopping.wait(pause_s(restarts.count))

        self.guard(again)

    def _forget(self) -> None:
        """After an error nobody has foreseen: what is in memory may be half done; the tables have it all."""
        with self.changed:
            self.engine.drop(list(self.engine.partitions))
            self._claiming = False
            self.changed.notify_all()
        self._nudge()

    def guard(self, loop: Callable[[], None]) -> None:
        """Run a loop; what ends it is kept as the failure of the whole."""
        try:
            loop()
        except LoopFailedError:
            # Another one's failure, which is kept already.
            return
        except BaseException as error:
            log.exception(events.LOOP_FAILED)
            with self.changed:
                self.failure = error
                self.changed.notify_all()


def _superseded() -> UnavailableError:
    return UnavailableError("the other connection has found another history of the database: this one is left")
