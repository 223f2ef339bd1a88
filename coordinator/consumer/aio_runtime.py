"""The consumer shell in asyncio: one coordinator, its work task, its control task.

The twin of `runtime`: the same engine, the same two connections, the same order of things. All of it runs in one event loop, and
between two awaits nothing else does, so the engine needs no lock. Two things are harder than with threads: whatever
blocks the loop stops the heartbeats, too; and everything may be cancelled anywhere.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar
from uuid import UUID, uuid4

import psycopg

from coordinator.consumer.aio_transaction import transaction
from coordinator.consumer.bell import Bell, Latch
from coordinator.consumer.counting import CLOCK_LOOK_S, Counting
from coordinator.consumer.health import findings
from coordinator.consumer.lag import Lag
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
from coordinator.consumer.telling import (
    partition_fields,
    places_of,
    tell_changes,
    tell_late,
    tell_verdict,
)
from coordinator.core.loop import Engine, Exchange, Resolve, Subscription, Wait
from coordinator.core.partition import Partition
from coordinator.core.retry import Failure
from coordinator.core.sessions import Sessions
from coordinator.db import exchange as wire
from coordinator.db.blockers import ablockers
from coordinator.db.connect import AsyncPool, aconnect, let_prepare, listen_statement
from coordinator.db.drive import adrive, afollow
from coordinator.db.pooler import with_pooler
from coordinator.db.schema import protocol_checked
from coordinator.db.translate import translated
from coordinator.db.uninterrupted import uninterrupted
from coordinator.db.upkeep import Upkeep
from coordinator.db.watchdog import AsyncWatchdog
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

# After so long without a pause, a task that takes messages lets the others have a turn.
_TURN_S = 0.002
# How late the loop may be before that is told; at most half a visibility timeout.
_BLOCKED_S = 1.0
_END_S = 1.0


class AsyncRuntime:
    """One coordinator in an event loop.

    `ready` is rung when messages may have become ready, `changed` when anything else may have.
    """

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
        self.loop: asyncio.AbstractEventLoop | None = None
        self._wake = Latch()
        self.engine = Engine(limits_of(settings), self._wake.set, random.random)
        self.counting = Counting(self.engine)
        self.ready = Bell()
        self.changed = Bell()
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
        self._process_count = 1
        self._stuck = Stuck()
        # Since when the work loop is at something; None while it waits.
        self._busy_since_s: float | None = None
        self._look_again_s = float("inf")
        self._channels: set[str] = set()
        self._stopping = Latch()
        # When whoever stops has no more time, monotonic; a cancellation brings it nearer.
        self._stop_by_s = float("inf")
        self._stir = Latch()
        self._nudged = False
        self._first_connection: psycopg.AsyncConnection[Any] | None = None
        self._watchdog = AsyncWatchdog(settings.round_trip_timeout_s)
        self._handlers_pool: AsyncPool | None = None
        self._work: asyncio.Task[None] | None = None
        self._control: asyncio.Task[None] | None = None
        self._hooks: set[asyncio.Future[object]] = set()
        self._lag = Lag(min(_BLOCKED_S, settings.visibility_timeout_s / 2), self._tell_blocked)
        self._turn_until_s = 0.0
        self._turning = False

    # ---- life

    async def start(self, options: Iterable[Options], settler: Settler) -> None:
        """Register and join in the caller's task, so that what is wrong is raised here; then start the loops.

        Args:
            options: One per subscription.
            settler: Gets what handlers say of their deliveries.
        """
        self._options = list(options)
        self._settler = settler
        self.id = uuid4()
        self.loop = asyncio.get_running_loop()
        connection = await self._connect("control")
        try:
            with self._watchdog.watch(connection):
                await adrive(protocol_checked(self.schema), connection, self.schema)
                self.settings = await adrive(
                    with_pooler(self.settings, connection.info.backend_pid), connection, self.schema
                )
            let_prepare(connection, self.settings.prepares)
            try:
                await self._join(connection)
            except BaseException:
                # Nobody must wait a lease for a member that never came; cancelled, too.
                with contextlib.suppress(CoordinatorError, psycopg.Error):
                    await self._run(connection, groups.leave(self.id))
                raise
        except BaseException:
            await connection.close()
            raise
        self._first_connection = connection
        METER.enter(self.counting)
        self._lag.start()
        self._control = asyncio.create_task(self._supervise(self._control_loop), name="coordinator-control")
        self._work = asyncio.create_task(self._supervise(self._work_loop), name="coordinator-work")

    async def stop(self, timeout_s: float) -> bool:
        """Write what is settled, release, leave; True if everything was released in time. Nothing may start any more.

        Without a database there is only the lease that gives the claims back: then it is waited for unsaved acks alone.
        Cancelled, it takes a second at most for what it can still write and release: others would have to wait for the lease.
        Cancelled again, it leaves at once. All connections are closed in any case.
        """
        self._stop_by_s = time.monotonic() + timeout_s
        return await uninterrupted(self._stop(min(timeout_s, RELEASE_PATIENCE_S)), self._hurry)

    def _hurry(self) -> None:
        self._stop_by_s = min(self._stop_by_s, time.monotonic() + _END_S)
        self._notify_all()

    async def _stop(self, patience_s: float) -> bool:
        try:
            released = await self._release(patience_s)
            self._stopping.set()
            self._wake.set()
            self._nudge()
            await self._end(max(self._stop_by_s - time.monotonic(), _END_S))
            if self._hooks:
                await asyncio.wait(self._hooks, timeout=_END_S)
        finally:
            self._stopping.set()
            METER.leave(self.counting)
            self._lag.stop()
            self._notify_all()
            self._watchdog.cut()
            self._cancel()
            for hook in self._hooks:
                hook.cancel()
            if self._handlers_pool is not None:
                await self._handlers_pool.close()
        return released

    async def _release(self, patience_s: float) -> bool:
        patience_until_s = time.monotonic() + patience_s
        self.engine.abandon(self.engine.subscriptions.values())
        self.engine.drain()
        self.engine.flush()
        self._notify_all()
        while (self.engine.partitions or self._claiming) and self.failure is None and self._tasks():
            now_s = time.monotonic()
            unsaved = any(partition.holds_unsaved for partition in self.engine.partitions.values())
            if now_s >= self._stop_by_s or (now_s >= patience_until_s and not unsaved):
                break
            await self.changed.wait(min(0.5, self._stop_by_s - now_s))
        return not self.engine.partitions

    async def _end(self, patience_s: float) -> None:
        """Wait for both loops; who does not come waits for a server that does not answer."""
        for limit_s, push in ((patience_s, self._watchdog.cut), (_END_S, self._cancel), (_END_S, self._cancel)):
            tasks = self._tasks()
            if not tasks:
                return
            _, pending = await asyncio.wait(tasks, timeout=limit_s)
            if pending:
                push()

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [task for task in (self._work, self._control) if task is not None and not task.done()]

    def _cancel(self) -> None:
        for task in self._tasks():
            task.cancel()

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set

    def dead_loops(self) -> list[str]:
        """Names of the loops that have ended and should not have."""
        if self._stopping.is_set:
            return []
        return [
            name
            for name, task in (("work", self._work), ("control", self._control))
            if task is not None and task.done()
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

    # ---- what handlers' tasks call

    async def take(
        self, subscriptions: Sequence[Subscription], max_count: int, timeout_s: float | None
    ) -> list[Message]:
        """Wait until messages may start, and hand them over; empty after the timeout, or when the coordinator stops.

        Nothing is awaited once messages were taken: a cancelled call has taken none.
        """
        await self._turn()
        now_s = time.monotonic()
        taken = self.engine.take(subscriptions, max_count, now_s)
        if taken:
            if now_s >= self.counting.sample_at_s:
                self.counting.taken(taken[0])
            return taken
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._stopping.is_set and not self.engine.draining:
            self.check()
            left_s = 1.0 if deadline_s is None else deadline_s - time.monotonic()
            if left_s <= 0:
                break
            await self.ready.wait(min(left_s, 1.0))
            taken = self.engine.take(subscriptions, max_count, time.monotonic())
            if taken:
                self.counting.taken(taken[0])
                break
        return taken

    def ack(self, message: Message) -> tuple[Partition, int]:
        """Settle; returns the goal that `saved` waits for."""
        assert message.delivery is not None
        partition = self.engine.ack(message.delivery, time.monotonic())
        if partition.subscription.runnable:
            self._one_ready()
        return partition, partition.settled_count

    async def saved(self, goals: Goals, lost_before: Sequence[Partition] = ()) -> None:
        """Return when the goals are durable; raises as `commit`."""
        deadline_s = time.monotonic() + self.settings.commit_timeout_s
        self.engine.flush()
        while not reached(goals):
            self.check()
            if time.monotonic() >= deadline_s:
                raise not_in_time(self.settings.commit_timeout_s)
            self.engine.flush()
            await self.changed.wait(0.5)
        check_lost(self.engine, goals, lost_before)

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
        jitter = random.random()  # noqa: S311
        verdict = self.engine.fail(message.delivery, error, failure, time.monotonic(), jitter, delay_s=delay_s)
        self._one_ready()
        tell_verdict(message, verdict)

    def give_back(self, message: Message) -> None:
        """Take a delivery back without a charge."""
        assert message.delivery is not None
        self.engine.give_back(message.delivery, time.monotonic(), OUTAGE_PAUSE_S)

    def extend(self, message: Message, seconds: float) -> bool:
        """Move the deadline; see Message.extend."""
        assert message.delivery is not None
        now_s = time.monotonic()
        return self.engine.extend(message.delivery, now_s + seconds, now_s)

    def transaction(
        self, messages: Sequence[Message], connection: object = None
    ) -> "contextlib.AbstractAsyncContextManager[psycopg.AsyncConnection[Any]]":
        """A transaction in which messages are acked at the end; see Message.transaction."""
        return transaction(self, messages, connection)

    def handlers_pool(self) -> AsyncPool:
        """Connections for handlers' transactions; nothing of ours limits them but their number."""
        if self._handlers_pool is None:
            self._handlers_pool = AsyncPool(
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

    async def commit(self) -> None:
        """Return when everything settled so far is durable.

        Raises:
            StaleEpochError: Some of it belongs to claims that were lost, now or since the last commit; the rest was waited for.
            UnavailableError: Not in time.
        """
        await self.saved(*all_unsaved(self.engine))

    async def wait_idle(self, timeout_s: float) -> bool:
        """Tell whether everything there is right now was read and settled; looks at the database once to say yes."""
        deadline_s = time.monotonic() + timeout_s
        seen = self.engine.exchange_count
        self.engine.expect(time.monotonic())
        while time.monotonic() < deadline_s:
            self.check()
            answer = read_to_end(self.engine, seen, assigned=self.assigned)
            if answer is not None:
                return answer
            if self.engine.exchange_count < seen + 2:
                self.engine.expect(time.monotonic())
            await self.changed.wait(0.02)
        return False

    async def _turn(self) -> None:
        """Let the other tasks have a turn from time to time.

        A loop over messages that are all in memory awaits nothing that is not there: without this the exchange that writes
        its acks and fetches more, and the heartbeat, would wait until the memory is empty.
        """
        if time.monotonic() < self._turn_until_s:
            return
        if not self._turning and self.loop is not None:
            self._turning = True
            self.loop.call_soon(self._next_turn)
        await asyncio.sleep(0)

    def _next_turn(self) -> None:
        self._turning = False
        self._turn_until_s = time.monotonic() + _TURN_S

    # ---- the work task

    async def _work_loop(self) -> None:
        connection: psycopg.AsyncConnection[Any] | None = None
        history: str | None = None
        failures = 0
        try:
            while not self._stopping.is_set:
                self._wake.clear()
                self._busy_since_s = time.monotonic()
                command, built_in = self.engine.next_command(time.monotonic()), self.history
                if any(subscription.runnable for subscription in self.engine.subscriptions.values()):
                    self._notify_all()
                self._tell_late()
                if isinstance(command, Wait) and not (connection is not None and self._listening.wanted):
                    self._busy_since_s = None
                    if not self.engine.partitions:
                        # It needs no database.
                        self.counting.away_since_s.pop("work", None)
                    await self._wake.wait(min(max(command.until_s - time.monotonic(), 0.0), LONGEST_WAIT_S))
                    continue
                try:
                    if connection is None:
                        connection = await self._connect("work")
                        history = await self._note_history(connection)
                    if history != self.history:
                        raise _superseded()
                    if built_in not in (None, history):
                        # Of a history that is gone: it may name an epoch that this one hands out again.
                        continue
                    if isinstance(command, Wait):
                        await self._ring(connection)
                    else:
                        await self._carry_out(connection, command)
                    self.counting.away_since_s.pop("work", None)
                    if failures:
                        log.info(events.CONNECTION_RESTORED, extra={"failures": failures})
                    failures = 0
                except (UnavailableError, psycopg.Error) as error:
                    failures += 1
                    self.broken_s = time.monotonic()
                    self.counting.away_since_s.setdefault("work", self.broken_s)
                    log.warning(events.EXCHANGE_FAILED, extra={"error": said(error), "failures": failures})
                    if isinstance(command, Exchange):
                        self.engine.on_failed(command)
                    if connection is not None and (connection.closed or isinstance(error, UnavailableError)):
                        await connection.close()
                        connection = None
                        self.engine.on_reconnected()
                    self._busy_since_s = None
                    self._busy_since_s = None
                    await self._stopping.wait(pause_s(failures))
        finally:
            if connection is not None:
                await connection.close()

    async def _ring(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Send the notification by which the control task knows that it hears."""
        self._listening.sending()
        await self._run(connection, admin.notify(render(self._listening.channel, self.schema)))
        self._listening.sent(time.monotonic())

    async def _carry_out(self, connection: psycopg.AsyncConnection[Any], command: Exchange | Resolve) -> None:
        if isinstance(command, Exchange):
            began_s = time.monotonic()
            with self._watchdog.watch(connection):
                answer = await wire.arun(connection, self.schema, exchange_call(self.id, command))
            now_s = time.monotonic()
            self.counting.exchanged(command, len(answer.rows), began_s, now_s)
            changes = on_answer(self.engine, command, answer, now_s)
        else:
            answers = await self._run(connection, resolve_statement(self.id, command))
            changes = self.engine.on_resolved(command, answers, time.monotonic())
        self._notify_all()
        for returned in tell_changes(changes, self._options):
            if isinstance(returned, Awaitable):
                self._hook(returned)
        if changes.lost or changes.released:
            self._nudge()

    def _hook(self, returned: Awaitable[object]) -> None:
        """Let a hook that is a coroutine run beside; the reference keeps it from being collected."""
        task = asyncio.ensure_future(returned)
        self._hooks.add(task)
        task.add_done_callback(self._hooked)

    def _hooked(self, task: asyncio.Future[object]) -> None:
        self._hooks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error(events.HOOK_FAILED, exc_info=task.exception())

    def _tell_late(self) -> None:
        slow, self.engine.slow = self.engine.slow, []
        late, self.engine.taken_back = self.engine.taken_back, []
        tell_late(slow, late, time.monotonic())

    def _tell_blocked(self, blocked_s: float) -> None:
        """Log that something held the loop; whose deliveries were under way says who it may have been."""
        running = [
            delivery for partition in self.engine.partitions.values() for delivery in partition.in_flight.values()
        ]
        log.warning(
            events.HANDLER_BLOCKED_LOOP,
            extra={"blocked_s": blocked_s, "in_flight": len(running), "deliveries": places_of(running)},
        )

    # ---- the control task

    async def _control_loop(self) -> None:
        failures = 0
        while not self._stopping.is_set:
            try:
                connection = self._first_connection or await self._connect("control")
                self._first_connection = None
                try:
                    await self._control_session(connection)
                finally:
                    self.counting.listening = False if self.settings.listens else None
                    await connection.close()
                failures = 0
            except (UnavailableError, psycopg.Error) as error:
                failures += 1
                self.broken_s = time.monotonic()
                self.counting.away_since_s.setdefault("control", self.broken_s)
                log.warning(events.CONNECTION_LOST, extra={"error": said(error), "failures": failures})
                await self._stopping.wait(pause_s(failures))

    async def _control_session(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Heartbeats, membership and wake-ups over one unbroken connection."""
        observed_since_s = time.monotonic()
        heartbeat_at_s = membership_at_s = maintenance_at_s = clock_at_s = sessions_at_s = 0.0
        sessions: Sessions[UUID] = Sessions()
        announced: UUID | None = None
        history = await self._note_history(connection)
        await self._listen(connection)
        self.counting.away_since_s.pop("control", None)
        while not self._stopping.is_set:
            now_s = time.monotonic()
            try:
                if history != self.history:
                    raise _superseded()
                if not self._joined:
                    await self._join(connection)
                    heartbeat_at_s = membership_at_s = 0.0
                if announced != self.id and not self.settings.pooled:
                    await self._run(connection, groups.hold_session(self.id, connection.info.backend_pid))
                    announced = self.id
                if self._listening.ask(now_s):
                    self._wake.set()
                if now_s >= heartbeat_at_s:
                    await self._heartbeat(connection)
                    heartbeat_at_s = now_s + jittered_s(self.settings.heartbeat_s)
                if now_s >= sessions_at_s:
                    if await self._follow(connection, watching(sessions, now_s - observed_since_s, now_s)):
                        membership_at_s = 0.0
                    sessions_at_s = sessions.next_look_s(self._process_count, now_s, random.random())  # noqa: S311
                if now_s >= membership_at_s:
                    await self._reconcile(connection, now_s - observed_since_s, history)
                    membership_at_s = now_s + min(jittered_s(self.settings.membership_poll_s), self._look_again_s)
                if now_s >= maintenance_at_s:
                    maintenance_at_s = now_s + await self._maintain(connection)
                if now_s >= clock_at_s:
                    await self._look_at_clock(connection)
                    clock_at_s = now_s + CLOCK_LOOK_S
                self._hold_back(now_s)
            except MemberReplacedError:
                self._end_replaced()
                await self._run(connection, groups.withdraw_charge(self.id))
                raise
            except MemberDeadError:
                self._start_over()
                continue
            if await self._notified(
                connection,
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
        await self._leave(connection)

    async def _maintain(self, connection: psycopg.AsyncConnection[Any]) -> float:
        """Move scheduled messages that are due, and one step of retention; returns seconds until the next time."""
        try:
            done = await self._run(connection, maintain_publishing(CHORES_LIMIT))
        except psycopg.Error as error:
            log.warning(events.MAINTENANCE_FAILED, extra={"error": said(error)})
            return CHORES_PAUSE_S
        return min(done.next_s, max(await self._upkeep.astep(partial(self._run, connection), time.monotonic()), 0.0))

    async def _look_at_clock(self, connection: psycopg.AsyncConnection[Any]) -> None:
        sent_s = time.time()
        server_s = await self._run(connection, admin.clock())
        self.counting.clock_read(server_s, sent_s, time.time())

    async def _notified(self, connection: psycopg.AsyncConnection[Any], until_s: float) -> bool:
        """Wait for a wake-up; True if the membership should be looked at."""
        # A notification may have been read along with an answer: then the socket stays silent.
        channels = await self._channels_rung(connection)
        if not channels:
            await self._readable(connection, until_s)
            channels = await self._channels_rung(connection)
        look, self._nudged = self._nudged, False
        if channels:
            self._listening.heard(time.monotonic())
        groups_channel = render("coordinator.groups", self.schema)
        if set(channels) - {groups_channel, render(self._listening.channel, self.schema)}:
            self.counting.notified_count += 1
            self.engine.expect(time.monotonic())
        return look or groups_channel in channels

    async def _channels_rung(self, connection: psycopg.AsyncConnection[Any]) -> list[str]:
        with translated(connection):
            return [notify.channel async for notify in connection.notifies(timeout=0)]

    async def _readable(self, connection: psycopg.AsyncConnection[Any], until_s: float) -> None:
        """Wait for bytes of the server, a nudge, or until then."""
        with translated(connection):
            place = connection.fileno()
        loop = asyncio.get_running_loop()
        loop.add_reader(place, self._stir.set)
        try:
            await self._stir.wait(max(until_s - time.monotonic(), 0.0))
        finally:
            loop.remove_reader(place)
        self._stir.clear()

    async def _heartbeat(self, connection: psycopg.AsyncConnection[Any]) -> None:
        if self._work is None or self._work.done() or self._work_hangs():
            return
        sent_s = time.monotonic()
        await self._run(connection, groups.heartbeat(self.id))
        self._on_lease(sent_s)

    def _work_hangs(self) -> bool:
        """A process whose work task does not come round must not stay alive by its heartbeats."""
        busy_since_s, settings = self._busy_since_s, self.settings
        hangs = is_hung(busy_since_s, time.monotonic(), settings.round_trip_timeout_s, settings.connect_timeout_s)
        if hangs and busy_since_s is not None:
            log.error(events.LOOP_HUNG, extra={"loop": "work", "hung_s": time.monotonic() - busy_since_s})
        return hangs

    def _hold_back(self, now_s: float) -> None:
        """Start nothing while the machine is too busy, where the settings say so."""
        busy = self._cpu.busy(now_s)
        if busy != self.engine.held_back:
            self.engine.held_back = busy
            self._notify_all()

    async def saw_outage(self, since_s: float) -> bool:
        """Tell, a moment after a handler has lost its connection, whether our own were lost too: then it is not its doing."""
        await asyncio.sleep(SERVER_LOOK_S)
        return self.broken_s >= since_s

    def status(self) -> Status:
        """What this coordinator is doing right now."""
        now_s = time.monotonic()
        return status_of(
            self.engine,
            self.id,
            now_s,
            wake_ups=self._listening.wake_ups,
            clock_skew_s=self.counting.clock_skew_s,
            problems=problems_of(
                self.counting.away_since_s, self._watchdog.silent_s(), self.engine.lease_until_s, self.failure, now_s
            ),
        )

    def _on_lease(self, sent_s: float) -> None:
        self.engine.on_lease(sent_s + self.settings.lease_s - self.settings.self_fence_margin_s)
        self._notify_all()

    async def _reconcile(
        self, connection: psycopg.AsyncConnection[Any], observed_s: float, history: str | None
    ) -> None:
        """Compare what is held with what the plans say; plan where nobody has."""
        states = await self._follow(
            connection, looking(self.id, group_ids(self.engine), observed_s, self.settings.rebalance_debounce_s)
        )
        self._look_again_s = look_again_s(states, self.id, self.settings.rebalance_debounce_s)
        self._process_count = process_count(states)
        self._claiming = not self.engine.draining
        found = moves(states, self.id, set(self.engine.partitions), self.settings.hand_over_s)
        claims: list[Claim] = []
        try:
            if found.wanted and self._claiming:
                claims = await self._run(connection, groups.claim(self.id, found.wanted, self.settings.hand_over_s))
        finally:
            if history != self.history:
                # Taken from a server that others have left meanwhile.
                claims = []
            self.counting.moved(claims, found)
            lost = move(self.engine, found, claims, time.monotonic())
            self.assigned = found.complete(claims)
            self._claiming = False
            self._notify_all()
        for partition in lost:
            log.warning(events.PARTITION_LOST, extra=partition_fields(partition))
        check_there(self.engine, states)
        if self._stuck.due(states, found, claims, time.monotonic()):
            await self._name_blockers(connection)

    async def _name_blockers(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Look who holds claims that nobody alive owns, and say so; end them where the settings allow it."""
        stuck = await self._run(connection, groups.stuck_claims(group_ids(self.engine)))
        if not stuck:
            return
        try:
            probe = await self._connect("probe")
        except UnavailableError:
            # No connection left for it; the next look tries again.
            return
        try:
            with self._watchdog.watch(connection):
                found, ended = await ablockers(
                    connection, probe, self.schema, stuck[0].key, end=self.settings.end_blockers
                )
        finally:
            await probe.close()
        self._stuck.on_found(stuck, found, ended, time.monotonic())

    async def _join(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Register and join every group; harmless when it is repeated after it was cut off half-way."""
        if self._alive_after_all is not None:
            # It was declared dead and charged with a crash, and is alive.
            await self._run(connection, groups.withdraw_charge(self._alive_after_all))
            self._alive_after_all = None
        if self._left_behind is not None:
            await self._run(connection, groups.give_up(self._left_behind))
            self._left_behind = None
        assert self._settler is not None
        sent_s = time.monotonic()
        joined = await self._follow(
            connection, entering(self.id, self.client_id, self.static_id, self.settings, self._options)
        )
        self._channels |= enter(self.engine, joined, self._settler)
        self._joined = True
        self._on_lease(sent_s)

    async def _note_history(self, connection: psycopg.AsyncConnection[Any]) -> str | None:
        """Look which history of the database a new connection sees; where it is another one, all memory is void (R4)."""
        told = await self._run(connection, admin.history())
        if told is None:
            return self.history
        before, self.history = self.history, told
        if before is not None and before != told:
            lost = self.engine.drop(list(self.engine.partitions))
            self._left_behind, self.id = self._left_behind or self.id, uuid4()
            self._joined = False
            self._notify_all()
            self._nudge()
            log.warning(events.HISTORY_CHANGED, extra={"before": before, "now": told, "partitions": len(lost)})
        return told

    def _start_over(self) -> None:
        """This coordinator was declared dead: drop everything and come back as a new one."""
        lost = self.engine.drop(list(self.engine.partitions))
        old, self.id = self.id, uuid4()
        self._joined = False
        self._alive_after_all = old
        self._notify_all()
        self.counting.lease_losses += 1
        log.warning(events.MEMBER_FENCED, extra={"member": str(old), "partitions": len(lost)})

    def _end_replaced(self) -> None:
        """Another process has the static id: nothing of this one's counts any more, and it must not come back."""
        lost = self.engine.drop(list(self.engine.partitions))
        self._notify_all()
        log.error(events.MEMBER_REPLACED, extra={"member": str(self.id), "partitions": len(lost)})

    async def _leave(self, connection: psycopg.AsyncConnection[Any]) -> None:
        # A claim that was under way when `stop` had lost patience: the work task has ended, and nobody else releases it.
        left = list(self.engine.partitions.values())
        if left:
            await self._run(connection, release_statement(self.id, left))
            self.engine.drop([partition.key for partition in left])
            self._notify_all()
        await self._run(connection, groups.leave(self.id, keep=self.static_id is not None))
        log.info(events.MEMBER_LEFT, extra={"member": str(self.id)})

    async def _listen(self, connection: psycopg.AsyncConnection[Any]) -> None:
        if not self.settings.listens:
            return
        with translated(connection), self._watchdog.watch(connection):
            ours = ("coordinator.groups", self._listening.channel)
            for channel in sorted({*self._channels, *(render(name, self.schema) for name in ours)}):
                await connection.execute(listen_statement(channel))
        self.counting.listening = True
        self._listening.begin(time.monotonic())
        # What was published before LISTEN took effect was not told.
        self.engine.expect(time.monotonic())

    # ---- shared

    async def _run(self, connection: psycopg.AsyncConnection[Any], statement: Statement[T]) -> T:
        with self._watchdog.watch(connection):
            return await wire.arun_alone(connection, self.schema, statement)

    async def _follow(self, connection: psycopg.AsyncConnection[Any], flow: Flow[T]) -> T:
        return await afollow(flow, lambda statement: self._run(connection, statement))

    async def _connect(self, purpose: str) -> psycopg.AsyncConnection[Any]:
        return await aconnect(
            self.dsn,
            self.settings.connect_timeout_s,
            f"coordinator {purpose} {self.client_id}"[:63],
            prepare=self.settings.prepares,
        )

    def _nudge(self) -> None:
        """Make the control task look at the membership now."""
        self._nudged = True
        self._stir.set()

    def _one_ready(self) -> None:
        """Something of one subscription may start: with several, the one that is woken may be another's."""
        self.ready.ring(1 if len(self._options) == 1 else None)

    def _notify_all(self) -> None:
        self.ready.ring()
        self.changed.ring()

    async def _supervise(self, loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run one of the two loops, and again a few times when it ends by an error; then that ends the whole."""
        restarts = Restarts()

        async def again() -> None:
            while True:
                try:
                    return await loop()
                except MemberReplacedError:
                    # It would only be told once more.
                    raise
                except Exception:
                    if self._stopping.is_set or not restarts.allow(time.monotonic()):
                        raise
                    log.exception(events.LOOP_RESTARTED)
                    self._forget()
                await self._stopping.wait(pause_s(restarts.count))

        await self.guard(again())

    def _forget(self) -> None:
        """After an error nobody has foreseen: what is in memory may be half done; the tables have it all."""
        self.engine.drop(list(self.engine.partitions))
        self._claiming = False
        self._notify_all()
        self._nudge()

    async def guard(self, loop: Coroutine[Any, Any, None]) -> None:
        """Run a loop; what ends it is kept as the failure of the whole."""
        try:
            await loop
        except asyncio.CancelledError:
            raise
        except LoopFailedError:
            # Another one's failure, which is kept already.
            return
        except BaseException as error:
            log.exception(events.LOOP_FAILED)
            self.failure = error
        finally:
            self._notify_all()


def _superseded() -> UnavailableError:
    return UnavailableError("the other connection has found another history of the database: this one is left")
