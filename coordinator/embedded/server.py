"""A private server: this process is its parent, and nobody else starts or stops it."""

from __future__ import annotations

import os
import shutil
import socket
from typing import TYPE_CHECKING, Self
from urllib.parse import quote

from coordinator.embedded import processes
from coordinator.embedded.account import account_for
from coordinator.embedded.keeper import spawn_guard
from coordinator.embedded.locks import FileLock, held
from coordinator.embedded.places import Layout, prepare, temporary_folder
from coordinator.embedded.postmaster import (
    DATABASE,
    SUPERUSER,
    Launch,
    Postmaster,
    StopMode,
    choose_binaries,
    prepare_launch,
)
from coordinator.errors import ConfigError, UnavailableError

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType

_LOCAL_HOST = "127.0.0.1"
_TCP_ATTEMPTS = 3
_LOCK_TIMEOUT_S = 90.0
_GUARD_TIMEOUT_S = 60.0


def socket_dsn(socket_dir: Path | str, port: int) -> str:
    """Return the libpq URL of the superuser's connection by socket; works for the owner and for root."""
    return f"postgresql://{SUPERUSER}@/{DATABASE}?host={quote(str(socket_dir), safe='')}&port={port}"


class EmbeddedServer:
    """A PostgreSQL server that lives as long as this object, and never longer than this process.

    Also after a SIGKILL of this process the server is stopped and a temporary folder removed, by a small guard process.
    Use it as a context manager, or call `stop`.
    """

    def __init__(self, launch: Launch, locks: list[FileLock], *, temporary: bool, start_timeout_s: float) -> None:
        """Not for callers: use `start`."""
        self._launch = launch
        self._locks = locks
        self._start_timeout_s = start_timeout_s
        # Before the server: whatever happens to this process from here on, somebody cleans up.
        self._guard: subprocess.Popen[bytes] | None = spawn_guard(launch, remove_root=temporary)
        self._postmaster: Postmaster | None = None

    @classmethod
    def start(
        cls,
        data_dir: Path | None = None,
        *,
        settings: Mapping[str, str] | None = None,
        bin_dir: Path | None = None,
        major: int | None = None,
        tcp: bool = False,
        start_timeout_s: float = 60.0,
    ) -> EmbeddedServer:
        """Start a server and wait until it takes connections.

        Args:
            data_dir: The folder for everything of this server, made if missing, kept at the end, and used again by the
                next start. None takes a temporary one that is removed at the end.
            settings: Settings of PostgreSQL, over max_connections 200, max_prepared_transactions 20, shared_buffers
                128MB. fsync is on unless it is turned off here.
            bin_dir: The folder of postgres and initdb; None looks for one, see `find_binaries`.
            major: The major to look for; None takes that of the data directory, else the newest.
            tcp: Listen on a free port of 127.0.0.1, too, with a password; see `tcp_dsn`.
            start_timeout_s: How long the start may take; crash recovery counts.

        Raises:
            ConfigError: If there are no binaries, the folder is in use, not ours or of another major, or a setting has
                an impossible name.
            UnavailableError: If the server does not start (disk full, wrong value of a setting); with its log's end.
        """
        if data_dir is None:
            folder = temporary_folder()
            try:
                return cls._start(folder, settings or {}, bin_dir, major, tcp, start_timeout_s, temporary=True)
            except BaseException:
                # The guard, if it was started, does the same; either may come first.
                shutil.rmtree(folder, ignore_errors=True)
                raise
        return cls._start(data_dir, settings or {}, bin_dir, major, tcp, start_timeout_s, temporary=False)

    @classmethod
    def _start(
        cls,
        data_dir: Path,
        settings: Mapping[str, str],
        bin_dir: Path | None,
        major: int | None,
        tcp: bool,
        start_timeout_s: float,
        *,
        temporary: bool,
    ) -> EmbeddedServer:
        layout = prepare(data_dir)
        account = account_for(layout.pgdata)
        # Wrong binaries are found before anything is written.
        choose_binaries(layout, bin_dir, major)
        with held(layout.start_lock, _LOCK_TIMEOUT_S):
            locks = _take_charge(layout)
            try:
                launch = prepare_launch(
                    layout,
                    account,
                    bin_dir=bin_dir,
                    major=major,
                    settings=settings,
                    sync=not temporary,
                    tcp_port=_free_port() if tcp else None,
                )
                # A server whose process and guard were both killed: nobody answers for it, so it ends.
                orphan = Postmaster.adopt(launch)
                if orphan is not None:
                    orphan.stop()
                server = cls(launch, locks, temporary=temporary, start_timeout_s=start_timeout_s)
            except BaseException:
                for lock in locks:
                    lock.release()
                raise
            try:
                server._launch_first()
            except BaseException:
                server.stop("immediate")
                raise
            return server

    def _launch_first(self) -> None:
        # Between the look for a free port and the server's use of it another program may take it.
        attempts = 1 if self._launch.tcp_port is None else _TCP_ATTEMPTS
        for attempt in range(1, attempts + 1):
            try:
                self._postmaster = Postmaster.start(self._launch, self._start_timeout_s)
            except UnavailableError:
                if attempt == attempts or _is_free(self._launch.port):
                    raise
                old = self._launch
                self._launch = Launch(old.layout, old.bin_dir, old.account, old.socket_dir, _free_port())
            else:
                return

    @property
    def dsn(self) -> str:
        """The URL for the superuser by Unix socket, without a password; for this user and for root only."""
        return socket_dsn(self._launch.socket_dir, self._launch.port)

    @property
    def tcp_address(self) -> tuple[str, int]:
        """Host and port; the port stays the same over `restart`.

        Raises:
            ConfigError: If the server was started without tcp.
        """
        if self._launch.tcp_port is None:
            raise ConfigError("the embedded server listens on its socket only; start it with tcp=True")
        return _LOCAL_HOST, self._launch.tcp_port

    @property
    def tcp_dsn(self) -> str:
        """The URL for the superuser over TCP, with the password in it.

        Raises:
            ConfigError: If the server was started without tcp.
        """
        host, port = self.tcp_address
        password = quote(self._launch.layout.password.read_text(), safe="")
        return f"postgresql://{SUPERUSER}:{password}@{host}:{port}/{DATABASE}?sslmode=disable"

    @property
    def data_dir(self) -> Path:
        """The server's folder; PostgreSQL's own data directory is `pgdata` in it."""
        return self._launch.layout.root

    @property
    def pgdata(self) -> Path:
        return self._launch.layout.pgdata

    @property
    def bin_dir(self) -> Path:
        """The binaries that run; for root perhaps a copy of those that were found."""
        return self._launch.bin_dir

    @property
    def log_path(self) -> Path:
        return self._launch.layout.log

    @property
    def running(self) -> bool:
        return self._postmaster is not None and self._postmaster.alive

    @property
    def pid(self) -> int:
        """The process id of the server's first process.

        Raises:
            UnavailableError: If it does not run.
        """
        if self._postmaster is None or not self._postmaster.alive:
            raise UnavailableError(f"the embedded server of {self.data_dir} does not run")
        return self._postmaster.pid

    @property
    def backend_pids(self) -> list[int]:
        """The process ids of everything that the server runs right now."""
        return processes.children(self.pid)

    def stop(self, mode: StopMode = "fast") -> None:
        """Shut down for good, and remove a temporary folder. A second call does nothing."""
        self.shut_down(mode)
        for lock in self._locks:
            lock.release()
        if self._guard is not None:
            # It gets the clients' lock now, and removes the folder if that is its task.
            self._guard.wait(_GUARD_TIMEOUT_S)
            self._guard = None

    def shut_down(self, mode: StopMode = "fast") -> None:
        """Shut down and keep the folder, so that `restart` can start again; `immediate` leaves crash recovery to do."""
        if self._postmaster is not None:
            self._postmaster.stop(mode)
            self._postmaster = None

    def kill(self) -> None:
        """SIGKILL all of the server's processes at once, as a power cut would; `restart` recovers."""
        if self._postmaster is not None:
            self._postmaster.kill()
            self._postmaster = None

    def restart(self, mode: StopMode = "fast") -> None:
        """Shut down, if it runs, and start again with the same DSN; also after `kill` and `shut_down`.

        Raises:
            UnavailableError: If it does not start, or was stopped for good.
        """
        if self._guard is None:
            raise UnavailableError(f"the embedded server of {self.data_dir} was stopped for good; start a new one")
        self.shut_down(mode)
        self._postmaster = Postmaster.start(self._launch, self._start_timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


def _take_charge(layout: Layout) -> list[FileLock]:
    clients = FileLock(layout.clients_lock, shared=True)
    # Waits for the guard or keeper of an earlier server, which holds it until that server has stopped.
    clients.acquire(_LOCK_TIMEOUT_S)
    in_charge = FileLock(layout.keeper_lock)
    if not in_charge.try_acquire():
        clients.release()
        raise ConfigError(
            f"the folder {layout.root} is in use by a running server ({layout.keeper_lock.read_text()}); "
            "stop that one first, or name another folder"
        )
    in_charge.write(f"private, of process {os.getpid()}")
    return [clients, in_charge]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_LOCAL_HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_LOCAL_HOST, port))
        except OSError:
            return False
        return True
