"""What both loops of the shell in threads stand on: the engine and its lock, connections, histories, and how a loop ends."""

import contextlib
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import psycopg

from coordinator.consumer.listening import problems_of
from coordinator.consumer.pacing import SERVER_LOOK_S, Restarts, pause_s
from coordinator.consumer.state import State
from coordinator.consumer.status import Status, status_of
from coordinator.consumer.yielding import Interpreter
from coordinator.db import exchange as wire
from coordinator.db.connect import connect
from coordinator.db.drive import follow
from coordinator.db.watchdog import Watchdog
from coordinator.errors import LoopFailedError, MemberReplacedError
from coordinator.observe import events
from coordinator.observe.logs import logger
from coordinator.protocol import admin
from coordinator.protocol.statement import Flow, Statement
from coordinator.settings import Settings

if TYPE_CHECKING:
    import socket

log = logger()

T = TypeVar("T")


class Base(State):
    """One coordinator in threads. `lock` guards the engine; `changed` is notified when something may have become ready."""

    def __init__(self, dsn: str, schema: str, settings: Settings, client_id: str, static_id: str | None = None) -> None:
        self._wake = threading.Event()
        super().__init__(dsn, schema, settings, client_id, static_id, self._wake.set)
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self._stopping = threading.Event()
        self._nudges: tuple[socket.socket, socket.socket] | None = None
        self._watchdog = Watchdog(settings.round_trip_timeout_s)
        self._interpreter = Interpreter()
        # Since when the work loop is at something; None while it waits.
        self._busy_since_s: float | None = None

    def silent_s(self) -> float:
        """How long the oldest round trip under way has been waiting."""
        return self._watchdog.silent_s()

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
                    self.engine.deleted,
                ),
            )

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
