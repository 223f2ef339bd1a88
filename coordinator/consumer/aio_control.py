"""The control loop in asyncio; the twin of `control`."""

import asyncio
import random
import time
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import psycopg

from coordinator.consumer.aio_work import AsyncWorkLoop
from coordinator.consumer.counting import CLOCK_LOOK_S
from coordinator.consumer.membership import (
    Stuck,
    end_deleted,
    enter,
    entering,
    group_ids,
    group_names,
    look_again_s,
    looking,
    move,
    moves,
    process_count,
    superseded,
    watching,
)
from coordinator.consumer.pacing import CHORES_LIMIT, CHORES_PAUSE_S, LEAVE_PATIENCE_S, CpuGuard, jittered_s, pause_s
from coordinator.consumer.requests import release_statement
from coordinator.consumer.telling import partition_fields, work_hangs
from coordinator.core.sessions import Sessions
from coordinator.db.blockers import ablockers
from coordinator.db.connect import listen_statement
from coordinator.db.translate import translated
from coordinator.db.upkeep import Upkeep
from coordinator.errors import MemberDeadError, MemberReplacedError, UnavailableError
from coordinator.observe import events
from coordinator.observe.logs import logger, said
from coordinator.protocol import admin, groups
from coordinator.protocol.maintenance import maintain_publishing
from coordinator.protocol.placeholder import render
from coordinator.settings import Settings

if TYPE_CHECKING:
    from coordinator.model import Claim, Settler

log = logger()


class AsyncControlLoop(AsyncWorkLoop):
    """Keeps the lease and the claims, over a connection of its own; looks after the work loop."""

    def __init__(self, dsn: str, schema: str, settings: Settings, client_id: str, static_id: str | None = None) -> None:
        super().__init__(dsn, schema, settings, client_id, static_id)
        self._settler: Settler | None = None
        self._alive_after_all: UUID | None = None
        self._channels: set[str] = set()
        self._process_count = 1
        self._look_again_s = float("inf")
        # Of the connection, one after the other.
        self._failures = 0
        self._stuck = Stuck()
        self._upkeep = Upkeep()
        self._cpu = CpuGuard(settings.pause_above_cpu)
        self._first_connection: psycopg.AsyncConnection[Any] | None = None
        self._control: asyncio.Task[None] | None = None

    async def _control_loop(self) -> None:
        while not self._stopping.is_set:
            try:
                connection = self._first_connection or await self._connect("control")
                self._first_connection = None
                try:
                    await self._control_session(connection)
                finally:
                    self.counting.listening = False if self.settings.listens else None
                    await connection.close()
            except (UnavailableError, psycopg.Error) as error:
                self._failures += 1
                self.broken_s = time.monotonic()
                self.counting.away_since_s.setdefault("control", self.broken_s)
                log.warning(events.CONNECTION_LOST, extra={"error": said(error), "failures": self._failures})
                await self._stopping.wait(pause_s(self._failures))

    async def _control_session(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Heartbeats, membership and wake-ups over one unbroken connection."""
        observed_since_s = time.monotonic()
        heartbeat_at_s = membership_at_s = maintenance_at_s = clock_at_s = sessions_at_s = 0.0
        sessions: Sessions[UUID] = Sessions()
        announced: UUID | None = None
        history = await self._note_history(connection)
        await self._listen(connection)
        while not self._stopping.is_set:
            now_s = time.monotonic()
            try:
                if history != self.history:
                    raise superseded()
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
                # Not before: a session that can be opened, and in which every look fails, is no better than none.
                self.counting.away_since_s.pop("control", None)
                if self._failures:
                    log.info(events.CONNECTION_RESTORED, extra={"failures": self._failures})
                    self._failures = 0
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
        if self._work is None or self._work.done() or work_hangs(self._busy_since_s, self.settings, time.monotonic()):
            return
        sent_s = time.monotonic()
        await self._run(connection, groups.heartbeat(self.id))
        self._on_lease(sent_s)

    def _hold_back(self, now_s: float) -> None:
        """Start nothing while the machine is too busy, where the settings say so."""
        busy = self._cpu.busy(now_s)
        if busy != self.engine.held_back:
            self.engine.held_back = busy
            self._notify_all()

    def _on_lease(self, sent_s: float) -> None:
        self.engine.on_lease(sent_s + self.settings.lease_s - self.settings.self_fence_margin_s)
        self._notify_all()

    async def _reconcile(
        self, connection: psycopg.AsyncConnection[Any], observed_s: float, history: str | None
    ) -> None:
        """Compare what is held with what the plans say; plan where nobody has."""
        held_before = set(self.engine.partitions)
        states = await self._follow(
            connection, looking(self.id, group_names(self.engine), observed_s, self.settings.rebalance_debounce_s)
        )
        self._look_again_s = look_again_s(states, self.id, self.settings.rebalance_debounce_s)
        self._process_count = process_count(states)
        self._claiming = not self.engine.draining
        found = moves(states, self.id, set(self.engine.partitions), self.settings.hand_over_s, held_before=held_before)
        claims: list[Claim] = []
        try:
            if found.wanted and self._claiming:
                claims = await self._run(connection, groups.claim(self.id, found.wanted, self.settings.hand_over_s))
        finally:
            if history != self.history:
                # Taken from a server that others have left meanwhile.
                claims = []
            else:
                end_deleted(self.engine, states)
            self.counting.moved(claims, found)
            lost = move(self.engine, found, claims, time.monotonic())
            self.assigned = found.complete(claims)
            self._claiming = False
            self._notify_all()
        for partition in lost:
            log.warning(events.PARTITION_LOST, extra=partition_fields(partition))
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
            connection,
            entering(
                self.id,
                self.client_id,
                self.static_id,
                self.settings,
                self._options,
                list(self.engine.subscriptions.values()),
            ),
        )
        self._channels |= enter(self.engine, joined, self._settler)
        self._joined = True
        self._on_lease(sent_s)

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
        # Its last exchange locks the claims' rows, and who is locked is not released.
        if self._work is not None:
            await asyncio.wait([self._work], timeout=LEAVE_PATIENCE_S)
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
