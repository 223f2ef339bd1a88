"""The work loop in asyncio; the twin of `work`."""

import asyncio
import time
from collections.abc import Awaitable
from typing import Any

import psycopg

from coordinator.consumer.aio_base import AsyncBase
from coordinator.consumer.lag import Lag
from coordinator.consumer.membership import superseded
from coordinator.consumer.pacing import LONGEST_WAIT_S, pause_s
from coordinator.consumer.requests import exchange_call, on_answer, resolve_statement
from coordinator.consumer.telling import places_of, tell_changes, tell_late
from coordinator.core.loop import Exchange, Resolve, Wait
from coordinator.db import exchange as wire
from coordinator.errors import UnavailableError
from coordinator.observe import events
from coordinator.observe.logs import logger, said
from coordinator.protocol import admin
from coordinator.protocol.placeholder import render
from coordinator.settings import Settings

log = logger()

# How late the loop may be before that is told; at most half a visibility timeout.
_BLOCKED_S = 1.0


class AsyncWorkLoop(AsyncBase):
    """Exchanges, over one connection that carries nothing else."""

    def __init__(self, dsn: str, schema: str, settings: Settings, client_id: str, static_id: str | None = None) -> None:
        super().__init__(dsn, schema, settings, client_id, static_id)
        # Since when the loop is at something; None while it waits.
        self._busy_since_s: float | None = None
        self._work: asyncio.Task[None] | None = None
        self._hooks: set[asyncio.Future[object]] = set()
        self._lag = Lag(min(_BLOCKED_S, settings.visibility_timeout_s / 2), self._tell_blocked)

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
                        raise superseded()
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
