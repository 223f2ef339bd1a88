"""The consumer shell in threads: one coordinator, its work loop, its control loop.

Two connections: the work loop's carries exchanges and nothing else; the control loop's carries heartbeats, membership and
LISTEN, so that a slow exchange delays no heartbeat. One lock guards the engine; no I/O is done while it is held.
"""

import contextlib
import logging
import os
import random
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID, uuid4

import psycopg

from coordinator.consumer.membership import moves, plan_of
from coordinator.consumer.requests import exchange_call, resolve_statement
from coordinator.core.loop import Engine, Exchange, Limits, Resolve, Subscription, Wait
from coordinator.core.partition import Partition
from coordinator.db import exchange as wire
from coordinator.db.connect import connect, listen_statement
from coordinator.db.drive import drive
from coordinator.db.schema import protocol_checked
from coordinator.db.translate import translated
from coordinator.errors import CoordinatorError, MemberDeadError, StaleEpochError, UnavailableError
from coordinator.model import Claim, GroupState, Message, Settler
from coordinator.observe import events
from coordinator.protocol import groups
from coordinator.protocol.placeholder import render
from coordinator.protocol.statement import Statement
from coordinator.settings import Settings

log = logging.getLogger("coordinator")

T = TypeVar("T")

_LONGEST_WAIT_S = 60.0
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0
_RELEASE_PATIENCE_S = 3.0


class Runtime:
    """One coordinator in threads. `lock` guards the engine; `changed` is notified when something may have become ready."""

    def __init__(self, dsn: str, schema: str, settings: Settings, client_id: str) -> None:
        self.dsn = dsn
        self.schema = schema
        self.settings = settings
        self.client_id = client_id
        self.id: UUID = uuid4()
        self.failure: BaseException | None = None
        self.assigned = False
        self._wake = threading.Event()
        self.engine = Engine(
            Limits(
                visibility_timeout_s=settings.visibility_timeout_s,
                max_window=settings.prefetch,
                max_holes=settings.max_holes,
                linger_s=settings.linger_s,
                poll_max_s=settings.poll_max_s,
            ),
            self._wake.set,
        )
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self._joins: list[tuple[str, Sequence[str], str, datetime | None]] = []
        self._channels: set[str] = set()
        self._stopping = threading.Event()
        self._nudge_in, self._nudge_out = socket.socketpair()
        self._nudge_in.setblocking(False)
        self._nudge_out.setblocking(False)
        self._work = threading.Thread(target=self._guard, args=(self._work_loop,), name="coordinator-work", daemon=True)
        self._control = threading.Thread(
            target=self._guard, args=(self._control_loop,), name="coordinator-control", daemon=True
        )

    # ---- life

    def start(self, joins: Iterable[tuple[str, Sequence[str], str, datetime | None]], settler: Settler) -> None:
        """Register and join in the caller's thread, so that what is wrong is raised here; then start the loops.

        Args:
            joins: Group, topics, where a new group starts (earliest, latest or time), and that time.
            settler: Gets what handlers say of their deliveries.
        """
        self._joins = list(joins)
        try:
            connection = self._connect("control")
            try:
                drive(protocol_checked(self.schema), connection, self.schema)
                self._join(connection, settler)
            except BaseException:
                connection.close()
                raise
        except BaseException:
            self._close_nudge()
            raise
        self._first_connection: psycopg.Connection[Any] | None = connection
        self._control.start()
        self._work.start()

    def stop(self, timeout_s: float) -> bool:
        """Write what is settled, release, leave; True if everything was released in time. Nothing may start any more.

        Without a database there is only the lease that gives the claims back: then it is waited for unsaved acks alone.
        """
        deadline_s = time.monotonic() + timeout_s
        patience_s = time.monotonic() + min(timeout_s, _RELEASE_PATIENCE_S)
        with self.changed:
            self.engine.abandon(self.engine.subscriptions.values())
            self.engine.drain()
            self.engine.flush()
            while self.engine.partitions and self.failure is None and time.monotonic() < deadline_s:
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
        self._close_nudge()
        return released

    def _close_nudge(self) -> None:
        self._nudge_in.close()
        self._nudge_out.close()

    def check(self) -> None:
        """Raise what ended a loop: a process whose loop is dead must not look alive."""
        if self.failure is not None:
            raise CoordinatorError(f"a background loop of the coordinator ended: {self.failure!r}") from self.failure

    # ---- what handlers' threads call

    def take(self, subscriptions: Sequence[Subscription], max_count: int, timeout_s: float | None) -> list[Message]:
        """Wait until messages may start, and hand them over; empty after the timeout, or when the coordinator stops."""
        with self.changed:
            taken = self.engine.take(subscriptions, max_count, time.monotonic())
            if taken:
                return taken
            deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
            while not self._stopping.is_set() and not self.engine.draining:
                self.check()
                left_s = 1.0 if deadline_s is None else deadline_s - time.monotonic()
                if left_s <= 0:
                    break
                self.changed.wait(min(left_s, 1.0))
                taken = self.engine.take(subscriptions, max_count, time.monotonic())
                if taken:
                    break
            return taken

    def ack(self, message: Message, *, wait: bool) -> None:
        """Settle; see Message.ack."""
        delivery = message.delivery
        assert delivery is not None
        with self.changed:
            partition = self.engine.ack(delivery, time.monotonic())
            if partition.queued:
                self.changed.notify()
            if not wait:
                return
            self._wait_saved([(partition, partition.settled_count)])

    def nack(self, message: Message) -> None:
        """Give back; see Message.nack."""
        assert message.delivery is not None
        with self.changed:
            self.engine.nack(message.delivery)
            self.changed.notify()

    def extend(self, message: Message, seconds: float) -> None:
        """Move the deadline; see Message.extend."""
        assert message.delivery is not None
        with self.lock:
            self.engine.extend(message.delivery, time.monotonic() + seconds)

    def commit(self) -> None:
        """Return when everything settled so far is durable.

        Raises:
            StaleEpochError: Some of it belongs to claims that were lost; the rest was waited for.
            UnavailableError: Not in time.
        """
        with self.changed:
            self._wait_saved([(p, p.settled_count) for p in self.engine.partitions.values() if p.holds_unsaved])

    def wait_idle(self, timeout_s: float) -> bool:
        """Tell whether everything there is right now was read and settled; looks at the database once to say yes."""
        deadline_s = time.monotonic() + timeout_s
        with self.changed:
            seen = self.engine.exchange_count
            self.engine.expect(time.monotonic())
            while time.monotonic() < deadline_s:
                self.check()
                if any(p.ready or p.in_flight for p in self.engine.partitions.values()):
                    return False
                if self.assigned and self.engine.exchange_count >= seen + 2 and self.engine.idle:
                    return True
                if self.assigned and not self.engine.partitions:
                    return True
                if self.engine.exchange_count < seen + 2:
                    self.engine.expect(time.monotonic())
                self.changed.wait(0.02)
            return False

    def _wait_saved(self, goals: Sequence[tuple[Partition, int]]) -> None:
        """Wait with the lock held; an exchange that was under way when the goal was set does not count for it."""
        deadline_s = time.monotonic() + self.settings.commit_timeout_s
        self.engine.flush()
        for partition, count in goals:
            while partition.saved_count < count and not partition.lost:
                self.check()
                if time.monotonic() >= deadline_s:
                    raise UnavailableError(
                        f"not committed within {self.settings.commit_timeout_s:g} s; the acks are kept and will be written "
                        "when the database is back, if the claim is still held then"
                    )
                self.engine.flush()
                self.changed.wait(0.5)
        lost = [partition for partition, count in goals if partition.lost and partition.saved_count < count]
        if lost:
            names = ", ".join(f"{p.source.topic}/{p.key.partition} (epoch {p.epoch})" for p in lost)
            raise StaleEpochError(
                f"lost before the ack was committed, and owned by somebody else: {names}", held=lost[0].epoch
            )

    # ---- the work loop

    def _work_loop(self) -> None:
        connection: psycopg.Connection[Any] | None = None
        failures = 0
        while not self._stopping.is_set():
            self._wake.clear()
            with self.changed:
                command = self.engine.next_command(time.monotonic())
                if any(subscription.runnable for subscription in self.engine.subscriptions.values()):
                    self.changed.notify_all()
            if isinstance(command, Wait):
                self._wake.wait(min(max(command.until_s - time.monotonic(), 0.0), _LONGEST_WAIT_S))
                continue
            try:
                if connection is None:
                    connection = self._connect("work")
                self._carry_out(connection, command)
                failures = 0
            except (UnavailableError, psycopg.Error) as error:
                failures += 1
                log.warning(events.EXCHANGE_FAILED, extra={"error": str(error), "failures": failures})
                with self.changed:
                    if isinstance(command, Exchange):
                        self.engine.on_failed(command)
                    if connection is not None and (connection.closed or isinstance(error, UnavailableError)):
                        connection.close()
                        connection = None
                        self.engine.on_reconnected()
                self._stopping.wait(_pause_s(failures))
        if connection is not None:
            connection.close()

    def _carry_out(self, connection: psycopg.Connection[Any], command: Exchange | Resolve) -> None:
        if isinstance(command, Exchange):
            answer = wire.run(connection, self.schema, exchange_call(self.id, command))
            with self.changed:
                changes = self.engine.on_exchanged(
                    command, answer.settled, answer.released, answer.rows, answer.gaps, time.monotonic()
                )
                self.changed.notify_all()
            if changes.released:
                self._nudge()
        else:
            answers = wire.run_alone(connection, self.schema, resolve_statement(self.id, command))
            with self.changed:
                changes = self.engine.on_resolved(command, answers, time.monotonic())
                self.changed.notify_all()
        for partition in changes.lost:
            log.warning(events.PARTITION_LOST, extra=_fields(partition))
        for partition in changes.released:
            log.info(events.PARTITION_RELEASED, extra=_fields(partition))
        if changes.lost:
            self._nudge()

    # ---- the control loop

    def _control_loop(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                connection = self._first_connection or self._connect("control")
                self._first_connection = None
                with connection:
                    self._control_session(connection)
                failures = 0
            except (UnavailableError, psycopg.Error) as error:
                failures += 1
                log.warning(events.CONNECTION_LOST, extra={"error": str(error), "failures": failures})
                self._stopping.wait(_pause_s(failures))

    def _control_session(self, connection: psycopg.Connection[Any]) -> None:
        """Heartbeats, membership and wake-ups over one unbroken connection."""
        observed_since_s = time.monotonic()
        self._listen(connection)
        heartbeat_at_s = membership_at_s = 0.0
        with selectors.DefaultSelector() as selector:
            selector.register(connection.fileno(), selectors.EVENT_READ)
            selector.register(self._nudge_in, selectors.EVENT_READ)
            while not self._stopping.is_set():
                now_s = time.monotonic()
                try:
                    if now_s >= heartbeat_at_s:
                        self._heartbeat(connection)
                        heartbeat_at_s = now_s + self.settings.heartbeat_s * random.uniform(0.8, 1.0)  # noqa: S311
                    if now_s >= membership_at_s:
                        self._reconcile(connection, now_s - observed_since_s)
                        membership_at_s = now_s + self.settings.membership_poll_s * random.uniform(0.8, 1.0)  # noqa: S311
                except MemberDeadError:
                    self._rejoin(connection)
                    heartbeat_at_s = membership_at_s = 0.0
                    continue
                if self._notified(connection, selector, min(heartbeat_at_s, membership_at_s)):
                    membership_at_s = 0.0
        self._leave(connection)

    def _notified(self, connection: psycopg.Connection[Any], selector: selectors.BaseSelector, until_s: float) -> bool:
        """Wait for a wake-up; True if the membership should be looked at."""
        look = False
        # A notification may have been read along with an answer: then the socket stays silent.
        with translated(connection):
            channels = [notify.channel for notify in connection.notifies(timeout=0)]
        if not channels:
            for key, _ in selector.select(max(until_s - time.monotonic(), 0.0)):
                if key.fileobj is self._nudge_in:
                    self._nudge_in.recv(4096)
                    look = True
            with translated(connection):
                channels = [notify.channel for notify in connection.notifies(timeout=0)]
        groups_channel = render("coordinator.groups", self.schema)
        if any(channel != groups_channel for channel in channels):
            with self.lock:
                self.engine.expect(time.monotonic())
        return look or groups_channel in channels

    def _heartbeat(self, connection: psycopg.Connection[Any]) -> None:
        if not self._work.is_alive():
            return
        sent_s = time.monotonic()
        self._run(connection, groups.heartbeat(self.id))
        self._on_lease(sent_s)

    def _on_lease(self, sent_s: float) -> None:
        with self.changed:
            self.engine.on_lease(sent_s + self.settings.lease_s - self.settings.self_fence_margin_s)
            self.changed.notify_all()

    def _reconcile(self, connection: psycopg.Connection[Any], observed_s: float) -> None:
        """Compare what is held with what the plans say; plan where nobody has."""
        self._run(connection, groups.reap(observed_s))
        states = self._planned(connection)
        with self.lock:
            held = set(self.engine.partitions)
            draining = self.engine.draining
        found = moves(states, self.id, held)
        claims: list[Claim] = []
        if found.wanted and not draining:
            claims = self._run(connection, groups.claim(self.id, found.wanted))
        with self.changed:
            lost = self.engine.drop(found.lost)
            self.engine.revoke(found.surplus)
            for claim in claims:
                partition = self.engine.on_claimed(claim, time.monotonic())
                log.info(events.PARTITION_ASSIGNED, extra={**_fields(partition), "takeover": claim.takeover})
            self.assigned = found.settled or (len(claims) == len(found.wanted) and not found.surplus and bool(claims))
            self.changed.notify_all()
        for partition in lost:
            # A release of ours that this look saw before the work loop had its answer is no loss.
            if not partition.revoking:
                log.warning(events.PARTITION_LOST, extra=_fields(partition))

    def _planned(self, connection: psycopg.Connection[Any]) -> list[GroupState]:
        group_ids = sorted({subscription.group_id for subscription in self.engine.subscriptions.values()})
        states = self._run(connection, groups.group_state(group_ids))
        stored = False
        for state in states:
            owners = plan_of(state, self.id)
            if owners is not None and self._run(connection, groups.store_plan(state.group_id, state.version, owners)):
                stored = True
                log.info(events.GROUP_PLANNED, extra={"group_id": state.group_id, "version": state.version})
        return self._run(connection, groups.group_state(group_ids)) if stored else states

    def _join(self, connection: psycopg.Connection[Any], settler: Settler) -> None:
        sent_s = time.monotonic()
        self._run(
            connection,
            groups.register(self.id, self.client_id, socket.gethostname(), os.getpid(), self.settings.lease_s),
        )
        for group, topics, start, start_time in self._joins:
            joined = self._run(connection, groups.join_group(self.id, group, topics, start, start_time))
            with self.lock:
                for topic in joined.topics:
                    self._channels.add(topic.channel)
                    if (joined.group_id, topic.topic_id) not in self.engine.subscriptions:
                        self.engine.subscribe(
                            Subscription(group, joined.group_id, topic.name, topic.topic_id, settler, deque())
                        )
            log.info(events.MEMBER_JOINED, extra={"group": group, "member": str(self.id)})
        self._settler = settler
        self._on_lease(sent_s)

    def _rejoin(self, connection: psycopg.Connection[Any]) -> None:
        """This coordinator was declared dead: drop everything and come back as a new one."""
        with self.changed:
            lost = self.engine.drop(list(self.engine.partitions))
            self.id = uuid4()
            self.changed.notify_all()
        log.warning(events.MEMBER_FENCED, extra={"member": str(self.id), "partitions": len(lost)})
        self._join(connection, self._settler)

    def _leave(self, connection: psycopg.Connection[Any]) -> None:
        self._run(connection, groups.leave(self.id))
        log.info(events.MEMBER_LEFT, extra={"member": str(self.id)})

    def _listen(self, connection: psycopg.Connection[Any]) -> None:
        if not self.settings.listen:
            return
        with translated(connection):
            for channel in sorted({*self._channels, render("coordinator.groups", self.schema)}):
                connection.execute(listen_statement(channel))
        # What was published before LISTEN took effect was not told.
        with self.lock:
            self.engine.expect(time.monotonic())

    # ---- shared

    def _run(self, connection: psycopg.Connection[Any], statement: Statement[T]) -> T:
        return wire.run_alone(connection, self.schema, statement)

    def _connect(self, purpose: str) -> psycopg.Connection[Any]:
        return connect(self.dsn, self.settings.connect_timeout_s, f"coordinator {purpose} {self.client_id}"[:63])

    def _nudge(self) -> None:
        """Make the control loop look at the membership now."""
        # An error: full, so it will look anyway; or closed, because it has stopped.
        with contextlib.suppress(OSError):
            self._nudge_out.send(b"x")

    def _guard(self, loop: Callable[[], None]) -> None:
        try:
            loop()
        except BaseException as error:
            log.exception(events.LOOP_FAILED)
            with self.changed:
                self.failure = error
                self.changed.notify_all()


def _pause_s(failures: int) -> float:
    """Capped exponential pause with jitter, so that a fleet does not come back in step."""
    pause_s = min(_FIRST_PAUSE_S * 2.0 ** min(failures, 10), _LONGEST_PAUSE_S)
    return pause_s * random.uniform(0.5, 1.0)  # noqa: S311


def _fields(partition: Partition) -> dict[str, object]:
    source = partition.source
    return {"group": source.group, "topic": source.topic, "partition": source.partition, "epoch": source.epoch}
