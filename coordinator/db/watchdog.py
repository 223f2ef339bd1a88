"""A limit for every round trip of ours that the server or the network does not keep.

A peer that takes bytes and never answers (a frozen pooler, a black hole that acknowledges) looks healthy to TCP keepalive, and
a statement timeout needs a server that runs. So each round trip is watched here, and its socket is shut down when it
takes too long: the waiting call then fails as for any lost connection.
"""

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg

# A timer that fires so late tells of its loop, not of the server.
_LATE_S = 1.0


class Watchdog:
    """One thread that watches the round trips under way of one coordinator."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._lock = threading.Condition()
        self._watched: dict[int, tuple[float, psycopg.BaseConnection[Any]]] = {}
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="coordinator-watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            self._lock.notify()
        if self._thread.ident is not None:
            self._thread.join(1.0)

    @contextlib.contextmanager
    def watch(self, connection: psycopg.BaseConnection[Any]) -> Iterator[None]:
        """Limit what the body does on a connection."""
        place = id(connection)
        self._watched[place] = (time.monotonic() + self._limit_s, connection)
        try:
            yield
        finally:
            self._watched.pop(place, None)

    def cut(self) -> None:
        """End every round trip that is under way."""
        for _, connection in list(self._watched.values()):
            _shut_down(connection)

    def silent_s(self) -> float:
        """How long the oldest round trip under way has been waiting; 0 for none."""
        oldest_s = min((deadline_s for deadline_s, _ in list(self._watched.values())), default=None)
        return 0.0 if oldest_s is None else time.monotonic() - oldest_s + self._limit_s

    def _run(self) -> None:
        with self._lock:
            while not self._stopped:
                # Whatever begins meanwhile is over later than this.
                now_s = time.monotonic()
                oldest_s = min((deadline_s for deadline_s, _ in list(self._watched.values())), default=None)
                self._lock.wait(self._limit_s if oldest_s is None else max(oldest_s - now_s, 0.05))
                now_s = time.monotonic()
                for deadline_s, connection in list(self._watched.values()):
                    if now_s >= deadline_s:
                        _shut_down(connection)


def _shut_down(connection: psycopg.BaseConnection[Any]) -> None:
    # A duplicate of the descriptor: libpq keeps its own, and closes it itself.
    with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
        duplicate.shutdown(socket.SHUT_RDWR)


class AsyncWatchdog:
    """`Watchdog` in an event loop: timers instead of a thread.

    Not asyncio.timeout: it cancels, and psycopg answers a cancellation with a cancel request on a new connection and ten
    seconds of patience. To the peer that is watched for here, that would be lost time.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._watched: dict[int, tuple[psycopg.BaseConnection[Any], asyncio.TimerHandle]] = {}
        self._began_s: dict[int, float] = {}

    @contextlib.contextmanager
    def watch(self, connection: psycopg.BaseConnection[Any]) -> Iterator[None]:
        """Limit what the body awaits on a connection."""
        place = id(connection)
        self._began_s[place] = time.monotonic()
        self._arm(place, connection, self._limit_s)
        try:
            yield
        finally:
            del self._began_s[place]
            self._watched.pop(place)[1].cancel()

    def silent_s(self) -> float:
        """`Watchdog.silent_s`."""
        return time.monotonic() - min(list(self._began_s.values()), default=time.monotonic())

    def cut(self) -> None:
        """End every round trip that is under way."""
        for connection, _ in self._watched.values():
            _shut_down(connection)

    def _arm(self, place: int, connection: psycopg.BaseConnection[Any], limit_s: float) -> None:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(limit_s, self._over, place, connection, loop.time() + limit_s)
        self._watched[place] = (connection, timer)

    def _over(self, place: int, connection: psycopg.BaseConnection[Any], deadline_s: float) -> None:
        if asyncio.get_running_loop().time() > deadline_s + _LATE_S:
            # The loop was blocked, so the answer may have come long ago: its reader runs after this timer.
            self._arm(place, connection, _LATE_S)
        else:
            _shut_down(connection)
