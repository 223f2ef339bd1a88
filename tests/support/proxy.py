"""A TCP proxy in front of a PostgreSQL server, which can do to a connection what networks do.

Threads and blocking sockets: two per connection, one for each direction. A fault is put on the connections of one name (the
beginning of application_name, which the start-up packet tells), those that are open and those to come, until `heal`.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self
from urllib.parse import quote, urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

_CHUNK_BYTES = 65536
_TICK_S = 0.02
_COMMIT_TAG = b"COMMIT\0"


@dataclass(frozen=True, slots=True)
class Fault:
    """What is done to a connection.

    Attributes:
        delay_s: Each piece of the server's answer is kept back for so long.
        swallow_up, swallow_down: Bytes to the server, or to the client, disappear; the connection stays open.
        hold: Nothing is read from the server, so its answer fills the buffers: a client that is frozen while it receives.
        cut_after_bytes: Reset after so many more bytes of the answer.
        cut_commit: "after": reset when the server has answered COMMIT, which the client never sees. "before": reset when
            the client asks for COMMIT, which the server never sees.
    """

    delay_s: float = 0.0
    swallow_up: bool = False
    swallow_down: bool = False
    hold: bool = False
    cut_after_bytes: int | None = None
    cut_commit: str | None = None


@dataclass(slots=True, eq=False)
class Link:
    """One connection through the proxy."""

    client: socket.socket
    server: socket.socket
    name: str = ""
    fault: Fault = field(default_factory=Fault)
    open: bool = True
    down_bytes: int = 0

    def reset(self) -> None:
        """End both halves; the client sees a reset, not an orderly end."""
        self.open = False
        with contextlib.suppress(OSError):
            self.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        for half in (self.client, self.server):
            # Shut down first: it wakes a thread that is blocked on the socket; closing alone does not.
            with contextlib.suppress(OSError):
                half.shutdown(socket.SHUT_RDWR)
            half.close()


class Proxy:
    """Listens on a port of its own. `dsn` goes through it, and is otherwise the one that was given.

    Attributes:
        cuts: How many connections a cut has ended so far.
        commits: How many answers to COMMIT have passed.
    """

    def __init__(self, dsn: str) -> None:
        known = {key: str(value) for key, value in conninfo_to_dict(dsn).items()}
        self._host, self._port = known.pop("host", "localhost"), int(known.pop("port", "5432"))
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._refusing = threading.Event()
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._links: list[Link] = []
        self._rules: dict[str, Fault] = {}
        self.cuts = 0
        self.commits = 0
        user, password = quote(known.pop("user", ""), safe=""), quote(known.pop("password", ""), safe="")
        account = f"{user}:{password}@" if password else f"{user}@"
        name = known.pop("dbname")
        known |= {"sslmode": "disable", "gssencmode": "disable"}
        port = self._listener.getsockname()[1]
        self.dsn = f"postgresql://{account}127.0.0.1:{port}/{name}?{urlencode(known)}"
        self._thread = threading.Thread(target=self._accept, name="proxy", daemon=True)
        self._thread.start()

    # ---- faults

    def put(self, fault: Fault, name: str = "") -> None:
        """Put a fault on all connections whose application_name begins with `name`."""
        with self._lock:
            self._rules[name] = fault
            for link in self._links:
                if link.name.startswith(name):
                    link.fault = fault

    def heal(self) -> None:
        """Let everything pass that is open still, and what comes."""
        self._refusing.clear()
        with self._lock:
            self._rules.clear()
            for link in self._links:
                link.fault = Fault()

    def reset(self, name: str = "") -> int:
        """Reset what is open; returns how many those were."""
        found = [link for link in self.links(name) if link.open]
        for link in found:
            link.reset()
        return len(found)

    def refuse(self) -> None:
        """Reset what is open, and whoever comes, until `heal`."""
        self._refusing.set()
        self.reset()

    def aim(self, dsn: str) -> None:
        """Lead whoever comes from now on to another server."""
        known = conninfo_to_dict(dsn)
        self._host, self._port = str(known.get("host", "localhost")), int(known.get("port", 5432))

    def links(self, name: str = "") -> list[Link]:
        """The connections that are open now."""
        with self._lock:
            self._links = [link for link in self._links if link.open]
            return [link for link in self._links if link.name.startswith(name)]

    # ---- life

    def close(self) -> None:
        self._closed.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)
        self.reset()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # ---- inside

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refusing.is_set():
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.close()
                continue
            try:
                server = self._connect()
            except OSError:
                client.close()
                continue
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = Link(client, server)
            with self._lock:
                self._links.append(link)
            for pump in (self._pump_up, self._pump_down):
                threading.Thread(target=self._guard, args=(pump, link), name="proxy-pump", daemon=True).start()

    def _connect(self) -> socket.socket:
        if self._host.startswith("/"):
            server = socket.socket(socket.AF_UNIX)
            server.connect(f"{self._host}/.s.PGSQL.{self._port}")
            return server
        server = socket.create_connection((self._host, self._port), timeout=5)
        server.settimeout(None)
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return server

    def _guard(self, pump: object, link: Link) -> None:
        # An error: one of the sockets is gone, so the other goes, too.
        with contextlib.suppress(OSError):
            pump(link)  # type: ignore[operator]
        link.reset()

    def _pump_up(self, link: Link) -> None:
        asks = _Asks()
        started = False
        while data := link.client.recv(_CHUNK_BYTES):
            if not started:
                self._name(link, data)
                started = True
                link.server.sendall(data)
                continue
            commit_at = asks.commit_at(data)
            if link.fault.cut_commit == "before" and commit_at is not None:
                link.server.sendall(data[: max(commit_at, 0)])
                # Time for what came before it to be carried out: it must be undone by the server, not missing.
                time.sleep(_TICK_S)
                self.cuts += 1
                return
            if not link.fault.swallow_up:
                link.server.sendall(data)

    def _pump_down(self, link: Link) -> None:
        answers = _Answers()
        while True:
            while link.fault.hold and link.open:
                time.sleep(_TICK_S)
            data = link.server.recv(_CHUNK_BYTES)
            if not data:
                return
            # Asked again: the fault may have come while recv waited, and this is the first piece that it is about.
            while link.fault.hold and link.open:
                time.sleep(_TICK_S)
            fault = link.fault
            if fault.delay_s:
                time.sleep(fault.delay_s)
            commit_at = answers.commit_at(data)
            if commit_at is not None:
                self.commits += 1
            if fault.cut_commit == "after" and commit_at is not None:
                link.client.sendall(data[: max(commit_at, 0)])
                self.cuts += 1
                return
            if fault.cut_after_bytes is not None:
                if len(data) > fault.cut_after_bytes:
                    link.client.sendall(data[: fault.cut_after_bytes])
                    self.cuts += 1
                    return
                link.fault = replace(fault, cut_after_bytes=fault.cut_after_bytes - len(data))
            if not fault.swallow_down:
                link.client.sendall(data)
                link.down_bytes += len(data)

    def _name(self, link: Link, startup: bytes) -> None:
        """Read application_name from the start-up packet; a cancel request has none."""
        words = startup[8:].split(b"\0")
        parameters = dict(zip(words[::2], words[1::2], strict=False))
        link.name = parameters.get(b"application_name", b"").decode()
        with self._lock:
            for name, fault in self._rules.items():
                if link.name.startswith(name):
                    link.fault = fault


class _Frames:
    """Finds the messages of the protocol in a stream that comes in pieces: a type, a length of four bytes, a body."""

    def __init__(self) -> None:
        self._rest = b""

    def take(self, data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield (place in `data` where it begins, negative if in an earlier piece; type; body) of what is complete now."""
        stream = self._rest + data
        at, before = 0, len(self._rest)
        while len(stream) - at >= 5:
            end = at + 1 + int.from_bytes(stream[at + 1 : at + 5], "big")
            if end > len(stream):
                break
            yield at - before, stream[at : at + 1], stream[at + 5 : end]
            at = end
        self._rest = stream[at:]


class _Answers:
    def __init__(self) -> None:
        self._frames = _Frames()

    def commit_at(self, data: bytes) -> int | None:
        """Where the first CommandComplete of a COMMIT begins in this piece."""
        found = [at for at, kind, body in self._frames.take(data) if kind == b"C" and body == _COMMIT_TAG]
        return found[0] if found else None


class _Asks:
    """Knows prepared statements by name: psycopg prepares what it has sent a few times."""

    def __init__(self) -> None:
        self._frames = _Frames()
        self._commits: set[bytes] = set()

    def commit_at(self, data: bytes) -> int | None:
        """Where the first message that asks for COMMIT begins in this piece."""
        found = None
        for at, kind, body in self._frames.take(data):
            words = body.split(b"\0")
            if kind == b"P":
                # Parse: the statement's name, its text.
                self._commits.discard(words[0])
                if words[1].lower() == b"commit":
                    self._commits.add(words[0])
            # Bind: the portal's name, the statement's name.
            if (
                (kind == b"B" and words[1] in self._commits) or (kind == b"Q" and words[0].lower() == b"commit")
            ) and found is None:
                found = at
        return found


def backend_count(dsn: str, name: str) -> int:
    """How many connections of that application_name the server has, by its own account."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(
            "select count(*) from pg_stat_activity where application_name like %s || '%%' and datname = current_database()",
            (name,),
        ).fetchone()
    assert row is not None
    return int(row[0])
