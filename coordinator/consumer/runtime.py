"""The consumer shell in threads: one coordinator, its work loop, its control loop.

Two connections: the work loop's carries exchanges and nothing else; the control loop's carries heartbeats, membership and
LISTEN, so that a slow exchange delays no heartbeat. One lock guards the engine; no I/O is done while it is held.
"""

import contextlib
import socket
import time
from collections.abc import Iterable
from uuid import uuid4

import psycopg

from coordinator.consumer.control import ControlLoop
from coordinator.consumer.handing import Handing
from coordinator.consumer.health import findings
from coordinator.consumer.options import Options
from coordinator.consumer.pacing import LEAVE_PATIENCE_S, RELEASE_PATIENCE_S
from coordinator.consumer.saving import left_unsaved
from coordinator.db.connect import let_prepare
from coordinator.db.drive import drive
from coordinator.db.pooler import with_pooler
from coordinator.db.schema import protocol_checked
from coordinator.errors import CoordinatorError
from coordinator.model import Settler
from coordinator.observe.health import Finding
from coordinator.observe.meter import METER
from coordinator.protocol import groups


class Runtime(ControlLoop, Handing):
    """One coordinator in threads, from `start` to `stop`."""

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
            self.unsaved = left_unsaved(self.engine, timeout_s)
        self._stopping.set()
        self._wake.set()
        self._nudge()
        for thread in (self._work, self._control):
            if thread.ident is not None:
                thread.join(max(deadline_s - time.monotonic(), LEAVE_PATIENCE_S))
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

    def findings(self) -> list[Finding]:
        """What is wrong with this coordinator now; from any thread."""
        return findings(self)
