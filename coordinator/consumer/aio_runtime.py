"""The consumer shell in asyncio: one coordinator, its work task, its control task.

The twin of `runtime`: the same engine, the same two connections, the same order of things. All of it runs in one event loop, and
between two awaits nothing else does, so the engine needs no lock. Two things are harder than with threads: whatever
blocks the loop stops the heartbeats, too; and everything may be cancelled anywhere.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterable
from uuid import uuid4

import psycopg

from coordinator.consumer.aio_control import AsyncControlLoop
from coordinator.consumer.aio_handing import AsyncHanding
from coordinator.consumer.health import findings
from coordinator.consumer.options import Options
from coordinator.consumer.pacing import RELEASE_PATIENCE_S
from coordinator.consumer.saving import left_unsaved
from coordinator.db.connect import let_prepare
from coordinator.db.drive import adrive
from coordinator.db.pooler import with_pooler
from coordinator.db.schema import protocol_checked
from coordinator.db.uninterrupted import uninterrupted
from coordinator.errors import CoordinatorError
from coordinator.model import Settler
from coordinator.observe.health import Finding
from coordinator.observe.meter import METER
from coordinator.protocol import groups
from coordinator.settings import Settings

_END_S = 1.0


class AsyncRuntime(AsyncControlLoop, AsyncHanding):
    """One coordinator in an event loop, from `start` to `stop`."""

    def __init__(self, dsn: str, schema: str, settings: Settings, client_id: str, static_id: str | None = None) -> None:
        super().__init__(dsn, schema, settings, client_id, static_id)
        # When whoever stops has no more time, monotonic; a cancellation brings it nearer.
        self._stop_by_s = float("inf")

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
        self.unsaved = left_unsaved(self.engine, self.settings.commit_timeout_s)
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

    def dead_loops(self) -> list[str]:
        """Names of the loops that have ended and should not have."""
        if self._stopping.is_set:
            return []
        return [
            name
            for name, task in (("work", self._work), ("control", self._control))
            if task is not None and task.done()
        ]

    def findings(self) -> list[Finding]:
        """What is wrong with this coordinator now; from any thread."""
        return findings(self)
