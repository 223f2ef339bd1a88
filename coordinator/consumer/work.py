"""The work loop in threads: asks the engine for a command, carries it out on a connection of its own, reports."""

import threading
import time
from typing import Any

import psycopg

from coordinator.consumer.base import Base
from coordinator.consumer.membership import superseded
from coordinator.consumer.pacing import LONGEST_WAIT_S, pause_s
from coordinator.consumer.requests import exchange_call, on_answer, resolve_statement
from coordinator.consumer.telling import tell_changes, tell_late
from coordinator.core.loop import Exchange, Resolve, Wait
from coordinator.db import exchange as wire
from coordinator.errors import UnavailableError
from coordinator.observe import events
from coordinator.observe.logs import logger, said
from coordinator.protocol import admin
from coordinator.protocol.placeholder import render
from coordinator.settings import Settings

log = logger()


class WorkLoop(Base):
    """Exchanges, over one connection that carries nothing else."""

    def __init__(self, dsn: str, schema: str, settings: Settings, client_id: str, static_id: str | None = None) -> None:
        super().__init__(dsn, schema, settings, client_id, static_id)
        self._work = threading.Thread(
            target=self._supervise, args=(self._work_loop,), name="coordinator-work", daemon=True
        )

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
                        raise superseded()
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
            with self._watchdog.watch(connection), self._interpreter.awaiting(connection):
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
