"""One server for all processes of a user: the first starts it, the others attach, the last one's end stops it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from coordinator.embedded import processes
from coordinator.embedded.account import account_for
from coordinator.embedded.keeper import SHARED, spawn_keeper
from coordinator.embedded.locks import FileLock, held, is_held
from coordinator.embedded.places import Layout, default_data_dir, prepare
from coordinator.embedded.postmaster import log_tail, prepare_launch
from coordinator.embedded.server import socket_dsn
from coordinator.errors import ConfigError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType

_POLL_INTERVAL_S = 0.02


class SharedServer:
    """This process's part in a shared server: while it is held, the server is kept running.

    The kernel gives it up when the process is gone, however that went. `close` gives it up before. Children made by
    fork hold it, too.
    """

    def __init__(self, layout: Layout, client: FileLock, dsn: str) -> None:
        """Not for callers: use `shared_server`."""
        self._layout = layout
        self._client = client
        self.dsn = dsn

    @property
    def data_dir(self) -> Path:
        return self._layout.root

    @property
    def log_path(self) -> Path:
        return self._layout.log

    @property
    def pid(self) -> int:
        """The process id of the server's first process; another one after it was killed and started again.

        Raises:
            UnavailableError: If it does not run.
        """
        pid = processes.postmaster_pid(self._layout.pgdata)
        if pid is None:
            raise UnavailableError(f"the embedded server of {self.data_dir} does not run")
        return pid

    def close(self) -> None:
        """Let the server go; it stops within a second when nobody else holds it. A second call does nothing."""
        self._client.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def shared_server(
    data_dir: Path | None = None,
    *,
    settings: Mapping[str, str] | None = None,
    bin_dir: Path | None = None,
    start_timeout_s: float = 60.0,
) -> SharedServer:
    """Attach to the shared server on a folder; start it if it does not run.

    Args:
        data_dir: The server's folder, made if missing and kept; None means the default one of this user.
        settings: Settings of PostgreSQL for the case that this call starts the server; see `EmbeddedServer.start`.
        bin_dir: The binaries for that case.
        start_timeout_s: How long that may take; also how long to wait for another process that is at it.

    Raises:
        ConfigError: If there are no binaries, the folder is not ours, of another major, or in use by a private server.
        UnavailableError: If the server does not start in time; with the end of its log.
    """
    layout = prepare(default_data_dir() if data_dir is None else data_dir)
    with held(layout.start_lock, start_timeout_s):
        client = FileLock(layout.clients_lock, shared=True)
        # Held before the look at the keeper: a keeper that is about to stop its server holds this lock exclusively, so
        # either we hold it and the keeper goes on, or we wait here until that server and its keeper are gone.
        client.acquire(start_timeout_s)
        try:
            dsn = _running(layout, bin_dir, settings or {}, start_timeout_s)
        except BaseException:
            client.release()
            raise
        return SharedServer(layout, client, dsn)


def _running(layout: Layout, bin_dir: Path | None, settings: Mapping[str, str], start_timeout_s: float) -> str:
    """Return the DSN of the folder's server, started if need be. The caller holds the start and the clients' lock."""
    deadline_s = time.monotonic() + start_timeout_s
    while True:
        # The keeper holds its lock from before the server starts until after it has stopped.
        if not is_held(layout.keeper_lock):
            launch = prepare_launch(layout, account_for(layout.pgdata), bin_dir=bin_dir, major=None, settings=settings)
            spawn_keeper(launch, start_timeout_s)
        kept_by = layout.keeper_lock.read_text()
        if kept_by and kept_by != SHARED:
            raise ConfigError(
                f"the folder {layout.root} is in use by a server that is not shared ({kept_by}); "
                "stop that one first, or name another folder"
            )
        file = processes.read_pid_file(layout.pgdata)
        if file is not None and file.ready and processes.postmaster_pid(layout.pgdata) == file.pid:
            return socket_dsn(file.socket_dir, file.port)
        # Killed, and its keeper is about to start it again; or ended, and its keeper with it.
        if time.monotonic() >= deadline_s:
            raise UnavailableError(
                f"the shared server of {layout.root} was not ready after {start_timeout_s:g} s; "
                f"its log ends:\n{log_tail(layout)}"
            )
        time.sleep(_POLL_INTERVAL_S)
