"""What both loops of the shell in asyncio stand on; the twin of `base`."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from uuid import uuid4

import psycopg

from coordinator.consumer.bell import Bell, Latch
from coordinator.consumer.listening import problems_of
from coordinator.consumer.pacing import SERVER_LOOK_S, Restarts, pause_s
from coordinator.consumer.state import State
from coordinator.consumer.status import Status, status_of
from coordinator.db import exchange as wire
from coordinator.db.connect import aconnect
from coordinator.db.drive import afollow
from coordinator.db.watchdog import AsyncWatchdog
from coordinator.errors import LoopFailedError, MemberReplacedError
from coordinator.observe import events
from coordinator.observe.logs import logger
from coordinator.protocol import admin
from coordinator.protocol.statement import Flow, Statement
from coordinator.settings import Settings

log = logger()

T = TypeVar("T")


class AsyncBase(State):
    """One coordinator in an event loop.

    `ready` is rung when messages may have become ready, `changed` when anything else may have.
    """

    def __init__(self, dsn: str, schema: str, settings: Settings, client_id: str, static_id: str | None = None) -> None:
        self._wake = Latch()
        super().__init__(dsn, schema, settings, client_id, static_id, self._wake.set)
        self.loop: asyncio.AbstractEventLoop | None = None
        self.ready = Bell()
        self.changed = Bell()
        self._stopping = Latch()
        self._stir = Latch()
        self._nudged = False
        self._watchdog = AsyncWatchdog(settings.round_trip_timeout_s)

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set

    def silent_s(self) -> float:
        """How long the oldest round trip under way has been waiting."""
        return self._watchdog.silent_s()

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
                self.counting.away_since_s,
                self._watchdog.silent_s(),
                self.engine.lease_until_s,
                self.failure,
                now_s,
                self.engine.deleted,
            ),
        )

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
