"""Gauges that are read from the database, by one process at a time, in the background: a scrape waits for no query."""

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import psycopg

from coordinator.db.connect import connect
from coordinator.db.drive import drive, execute
from coordinator.db.exchange import run_alone
from coordinator.db.schema import protocol_checked
from coordinator.errors import CoordinatorError, DeniedError
from coordinator.model import TopicInfo
from coordinator.observe import events, metrics
from coordinator.observe.logs import logger, said
from coordinator.observe.meter import Reading
from coordinator.protocol.admin import protocol_version
from coordinator.protocol.observe import (
    GroupGauge,
    GroupTotals,
    ServerGauges,
    end_export_turn,
    group_gauges,
    group_totals,
    server_gauges,
    take_export_turn,
)
from coordinator.protocol.statement import Flow, call
from coordinator.protocol.topics import describe_topics

log = logger()

# How often the gauges are read, and how long a process that does not ask again keeps the turn.
_EVERY_S = 10.0
_HOLD_S = 35.0
# Between readings it looks so often whether the database still answers.
_LOOK_S = 2.0
# A reading that takes long is made more rarely: at most this part of the time is spent on it.
_MAX_SHARE = 0.1
_PAUSE_S = 2.0
_DENIED_PAUSE_S = 300.0
# What is older says nothing any more.
_STALE_S = 60.0


class DatabaseGauges:
    """One thread with one connection. `read` adds what it has, where this process has the turn."""

    def __init__(self, open_connection: Callable[[], "psycopg.Connection[Any]"], schema: str) -> None:
        self._open = open_connection
        self._schema = schema
        self._exporter = uuid4()
        self._stopping = threading.Event()
        self._reading: Reading | None = None
        self._read_at_s = 0.0
        self._thread = threading.Thread(target=self._run, name="coordinator-gauges", daemon=True)
        self.failure: BaseException | None = None
        self.away_since_s: float | None = None
        self.away_reason = "it does not answer"
        # Since when an answer is waited for that takes no time: a frozen server breaks no connection.
        self._asked_at_s: float | None = None

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def away_s(self) -> float:
        """Since when there is no database, in seconds; 0 while there is one."""
        since_s = self.away_since_s if self.away_since_s is not None else self._asked_at_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    def stop(self) -> None:
        """End the thread, and leave the turn to others."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(5.0)

    def read(self, into: Reading) -> None:
        """Add the newest gauges, and how old they are; nothing of them where another process exports them."""
        reading, age_s = self._reading, time.monotonic() - self._read_at_s
        exports = reading is not None and age_s < _STALE_S
        into.gauge(metrics.EXPORTER, float(exports))
        if reading is not None and exports:
            into.gauges.update(reading.gauges)
            into.counters.update(reading.counters)
            into.gauge(metrics.GAUGES_AGE, age_s)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    self._asked_at_s = time.monotonic()
                    with contextlib.closing(self._open()) as connection:
                        drive(protocol_checked(self._schema), connection, self._schema)
                        self._asked_at_s = None
                        self._session(connection)
                except DeniedError as error:
                    # A consumer's role may not read what concerns all groups: others export it, and this process is well.
                    self.away_since_s = self._asked_at_s = self._reading = None
                    log.info(events.GAUGES_DENIED, extra={"error": said(error)})
                    self._stopping.wait(_DENIED_PAUSE_S)
                except (CoordinatorError, psycopg.Error) as error:
                    if self.away_since_s is None:
                        self.away_since_s = self._asked_at_s or time.monotonic()
                        log.warning(events.GAUGES_FAILED, extra={"error": said(error)})
                    self._asked_at_s = None
                    self.away_reason = said(error)
                    self._stopping.wait(_PAUSE_S)
        except BaseException as error:
            log.exception(events.LOOP_FAILED)
            self.failure = error

    def _session(self, connection: "psycopg.Connection[Any]") -> None:
        while not self._stopping.is_set():
            took_s = 0.0
            if run_alone(connection, self._schema, take_export_turn(self._exporter, _HOLD_S)):
                began_s = time.monotonic()
                reading = drive(read_gauges(), connection, self._schema)
                took_s = time.monotonic() - began_s
                reading.gauge(metrics.GAUGES_DURATION, took_s)
                if reading.withheld and self._reading is None:
                    log.info(events.GAUGES_DENIED, extra={"views": ",".join(reading.withheld)})
                self._reading, self._read_at_s = reading, time.monotonic()
            else:
                self._reading = None
            self.away_since_s = None
            self._watch(connection, max(_EVERY_S, took_s / _MAX_SHARE))
        with contextlib.suppress(CoordinatorError, psycopg.Error):
            execute(end_export_turn(self._exporter), connection, self._schema)

    def _watch(self, connection: "psycopg.Connection[Any]", pause_s: float) -> None:
        """Wait for the next reading; whether there is a database is found out sooner."""
        until_s = time.monotonic() + pause_s
        while (left_s := until_s - time.monotonic()) > 0 and not self._stopping.wait(min(left_s, _LOOK_S)):
            self._asked_at_s = time.monotonic()
            run_alone(connection, self._schema, protocol_version())
            self._asked_at_s = None


def read_gauges() -> Flow[Reading]:
    """Read the gauges of the database once, whoever's turn it is to export them."""
    partitions = yield from call(group_gauges())
    totals = yield from call(group_totals())
    topics = yield from call(describe_topics())
    server = yield from call(server_gauges())
    return reading_of(partitions, totals, topics, server)


def opener(dsn: str, connect_timeout_s: float, client_id: str, *, prepare: bool) -> Callable[[], Any]:
    """Return what opens a connection for the gauges."""
    return lambda: connect(dsn, connect_timeout_s, f"coordinator gauges {client_id}"[:63], prepare=prepare)


def reading_of(
    partitions: list[GroupGauge], totals: list[GroupTotals], topics: list[TopicInfo], server: ServerGauges
) -> Reading:
    """Bring what the database has told into the form of metrics."""
    reading = Reading()
    gauges = reading.gauges
    for gauge in partitions:
        place, topic = (gauge.group, gauge.topic, str(gauge.partition)), (gauge.group, gauge.topic)
        gauges[metrics.LAG, place] = gauge.lag
        gauges[metrics.LAG_SECONDS, place] = gauge.lag_s
        reading.gauge(metrics.GROUP_PARKED, gauge.parked, *topic)
        reading.gauge(metrics.UNOWNED, 0 if gauge.owned else 1, *topic)
        oldest_s = gauges.get((metrics.OLDEST_UNACKED, topic), 0.0)
        gauges[metrics.OLDEST_UNACKED, topic] = max(oldest_s, gauge.oldest_unacked_s)
    for total in totals:
        gauges[metrics.GROUP_MEMBERS, (total.group,)] = total.members
        gauges[metrics.GROUP_DEAD_LETTERS, (total.group,)] = total.dead_letters
        reading.counters[metrics.SKIPPED, (total.group,)] = total.skipped
    for topic_info in topics:
        gauges[metrics.TOPIC_BYTES, (topic_info.name,)] = topic_info.size_bytes
        gauges[metrics.SEGMENTS, (topic_info.name,)] = server.segments.get(topic_info.name, 0)
        for partition, high in enumerate(topic_info.high_offsets):
            gauges[metrics.LOG_END, (topic_info.name, str(partition))] = high + 1
    for table, count in server.dead_tuples.items():
        gauges[metrics.DEAD_TUPLES, (table,)] = count
    for task, at in server.maintained_at.items():
        gauges[metrics.MAINTENANCE, (task,)] = at
    if server.oldest_snapshot_s is not None:
        gauges[metrics.SNAPSHOT_AGE, ()] = server.oldest_snapshot_s
    reading.withheld = tuple(server.withheld)
    return reading
