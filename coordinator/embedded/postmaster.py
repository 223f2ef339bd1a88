"""One server process on one data directory: create, start, wait, signal, kill. Knows nothing of sharing."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from coordinator.embedded import processes
from coordinator.embedded.binaries import environment, find_binaries, major_of, readable_binaries
from coordinator.errors import ConfigError, UnavailableError
from coordinator.observe import events
from coordinator.observe.logs import logger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coordinator.embedded.account import Account
    from coordinator.embedded.places import Layout

StopMode = Literal["smart", "fast", "immediate"]
log = logger("coordinator.embedded")

SUPERUSER = "postgres"
DATABASE = "postgres"
SOCKET_PORT = 5432
_SIGNALS: dict[StopMode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}
# Everything that costs durability (fsync, synchronous_commit, full_page_writes) stays as PostgreSQL ships it: on.
DEFAULT_SETTINGS: dict[str, str] = {
    "max_connections": "200",
    "max_prepared_transactions": "20",
    "shared_buffers": "128MB",
    "log_line_prefix": "%m [%p] %q%a ",
}
_SETTINGS_FILE = "coordinator.conf"
_INITDB_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 60.0
_POLL_INTERVAL_S = 0.02
_MAX_LOG_BYTES = 10 * 1024 * 1024
_LOG_TAIL_LINES = 15


@dataclass(frozen=True, slots=True)
class Launch:
    """All that is needed to start the server, again if need be. `tcp_port` is None without TCP."""

    layout: Layout
    bin_dir: Path
    account: Account
    socket_dir: Path
    tcp_port: int | None = None

    @property
    def port(self) -> int:
        """The port in the socket's name, and on 127.0.0.1 with TCP."""
        return SOCKET_PORT if self.tcp_port is None else self.tcp_port


class Postmaster:
    """A running server: a child of this process, or one that another process started (then `child` is None)."""

    def __init__(self, launch: Launch, child: subprocess.Popen[bytes] | None, pid: int) -> None:
        self.pid = pid
        self._launch = launch
        self._child = child

    @classmethod
    def start(cls, launch: Launch, timeout_s: float) -> Postmaster:
        """Start the server as a child of this process and wait until it takes connections.

        Raises:
            UnavailableError: If it ends before that, or `timeout_s` pass; with the end of its log.
        """
        layout = launch.layout
        _remove_left_over_pid_file(layout.pgdata)
        if layout.log.exists() and layout.log.stat().st_size > _MAX_LOG_BYTES:
            layout.log.replace(layout.log.with_suffix(".log.old"))
        # Where it listens is given here, and not in a file, so that no ALTER SYSTEM can move it away from us.
        listen = "" if launch.tcp_port is None else "127.0.0.1"
        command = [
            str(launch.bin_dir / "postgres"),
            "-D",
            str(layout.pgdata),
            "-p",
            str(launch.port),
            "-k",
            str(launch.socket_dir),
            "-c",
            f"listen_addresses={listen}",
        ]
        # postgres itself and not pg_ctl: its parent must be the one that reaps it. A session of its own keeps a
        # Ctrl-C at the terminal from ending the server under clients that are still draining.
        with layout.log.open("ab") as log:
            layout.log.chmod(0o600)
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=environment(launch.bin_dir),
                start_new_session=True,
                **launch.account.identity,
            )
        server = cls(launch, child, child.pid)
        try:
            server._wait_ready(timeout_s)
        except BaseException:
            server.kill()
            raise
        return server

    @classmethod
    def adopt(cls, launch: Launch) -> Postmaster | None:
        """Take over a server that runs on the data directory without its keeper; None if there is none."""
        pid = processes.postmaster_pid(launch.layout.pgdata)
        return None if pid is None else cls(launch, None, pid)

    @property
    def alive(self) -> bool:
        if self._child is not None:
            return self._child.poll() is None
        return processes.postmaster_pid(self._launch.layout.pgdata) == self.pid

    @property
    def exit_status(self) -> int | None:
        """The child's exit status, negative for a signal; None while it runs, or for a server of another process."""
        return self._child.poll() if self._child is not None else None

    def _wait_ready(self, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while self.alive:
            file = processes.read_pid_file(self._launch.layout.pgdata)
            if file is not None and file.pid == self.pid and file.ready:
                return
            if time.monotonic() >= deadline_s:
                tail = log_tail(self._launch.layout)
                raise UnavailableError(
                    f"the embedded server was not ready after {timeout_s:g} s; its log ends:\n{tail}"
                )
            time.sleep(_POLL_INTERVAL_S)
        tail = log_tail(self._launch.layout)
        raise UnavailableError(f"the embedded server ended while it started; its log ends:\n{tail}")

    def stop(self, mode: StopMode = "fast") -> None:
        """Shut the server down and wait for its end; harder when that takes longer than a minute."""
        self._signal(_SIGNALS[mode])
        if self._wait_end(_STOP_TIMEOUT_S):
            return
        self._signal(signal.SIGQUIT)
        if not self._wait_end(_STOP_TIMEOUT_S):
            self.kill()

    def kill(self) -> None:
        """SIGKILL the server and all its processes at once, and wait until they are gone."""
        # Stopped first: otherwise the postmaster sees its first child die and starts others behind our back.
        self._signal(signal.SIGSTOP)
        victims = processes.children(self.pid)
        self._signal(signal.SIGKILL)
        for victim in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        self._wait_end(_STOP_TIMEOUT_S)
        deadline_s = time.monotonic() + _STOP_TIMEOUT_S
        # Until the last one has let go of the shared memory, no new server can start on the data directory.
        while any(map(processes.is_running, victims)) and time.monotonic() < deadline_s:
            time.sleep(_POLL_INTERVAL_S)

    def _signal(self, number: signal.Signals) -> None:
        # `alive` reaps a child that is gone, so its number cannot have been given to another process.
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _wait_end(self, timeout_s: float) -> bool:
        deadline_s = time.monotonic() + timeout_s
        while self.alive:
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(_POLL_INTERVAL_S)
        return True


def choose_binaries(layout: Layout, bin_dir: Path | None, major: int | None) -> Path:
    """Return the binaries for the folder: those named, else those of its data directory's major, else the newest.

    Raises:
        ConfigError: If there are none, or their major is not that of the data directory.
    """
    found = existing_major(layout)
    chosen = bin_dir if bin_dir is not None else find_binaries(major if major is not None else found)
    wanted = major_of(chosen)
    if found is not None and found != wanted:
        raise ConfigError(
            f"the data directory {layout.pgdata} was made by PostgreSQL {found}, found binaries of {wanted} in "
            f"{chosen}; name binaries of {found}, or another folder, or move the data with pg_upgrade"
        )
    return chosen


def existing_major(layout: Layout) -> int | None:
    """Return the major that made the data directory; None if there is no data directory yet."""
    try:
        return int((layout.pgdata / "PG_VERSION").read_text().partition(".")[0])
    except FileNotFoundError:
        return None


def create(layout: Layout, bin_dir: Path, account: Account, *, sync: bool) -> None:
    """Create the data directory if there is none.

    Args:
        layout: The folder.
        bin_dir: Binaries that the account can run.
        account: Whom the server runs as.
        sync: Wait until the files are on the disk. False for a folder that does not outlive its process.

    Raises:
        UnavailableError: If initdb fails, such as for a full disk; with what it said.
    """
    if existing_major(layout) is not None:
        return
    log.info(events.EMBEDDED_STEP_BEGUN, extra={"step": "initdb makes a data directory", "folder": str(layout.pgdata)})
    # Made under another name and renamed: a process that is killed here leaves no half-made data directory.
    for left_over in layout.root.glob("pgdata.new-*"):
        shutil.rmtree(left_over, ignore_errors=True)
    unfinished = Path(tempfile.mkdtemp(prefix="pgdata.new-", dir=layout.root))
    account.own(unfinished)
    layout.password.unlink(missing_ok=True)
    layout.password.touch(mode=0o600)
    layout.password.write_text(secrets.token_urlsafe(24))
    account.own(layout.password)
    command = [
        str(bin_dir / "initdb"),
        f"--pgdata={unfinished}",
        f"--username={SUPERUSER}",
        # Present everywhere and the same everywhere; other locales depend on the machine.
        "--locale=C",
        "--encoding=UTF8",
        # The socket's folder is closed to other users, so whoever reaches it may pass. Everybody can reach the port.
        "--auth-local=trust",
        "--auth-host=scram-sha-256",
        f"--pwfile={layout.password}",
        *([] if sync else ["--no-sync"]),
    ]
    try:
        made = subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd="/",
            timeout=_INITDB_TIMEOUT_S,
            env=environment(bin_dir),
            **account.identity,
        )
        if made.returncode != 0:
            tail = "\n".join(made.stdout.splitlines()[-_LOG_TAIL_LINES:])
            raise UnavailableError(f"initdb could not make {layout.pgdata} (exit {made.returncode}); it said:\n{tail}")
        # O_NOFOLLOW: the folder is the server's account's by now, and we may be root.
        main = os.open(unfinished / "postgresql.conf", os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
        with os.fdopen(main, "w") as file:
            file.write(f"\ninclude_if_exists = '{_SETTINGS_FILE}'\n")
        unfinished.rename(layout.pgdata)
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"initdb did not finish {layout.pgdata} within {_INITDB_TIMEOUT_S:g} s") from error
    finally:
        if unfinished.exists():
            shutil.rmtree(unfinished, ignore_errors=True)


def configure(layout: Layout, account: Account, settings: Mapping[str, str]) -> None:
    """Write the defaults and `settings` to where ALTER SYSTEM can still override them."""
    lines = []
    for name, value in {**DEFAULT_SETTINGS, **settings}.items():
        if not name.replace("_", "").replace(".", "").isalnum() or "\n" in value:
            raise ConfigError(f"{name!r} = {value!r} is no setting of PostgreSQL")
        quoted = value.replace("'", "''")
        lines.append(f"{name} = '{quoted}'\n")
    # The folder belongs to the server's account, which could put a link here: written under a new name (mkstemp refuses
    # an existing one) and renamed, which replaces a link instead of following it.
    descriptor, name = tempfile.mkstemp(prefix=_SETTINGS_FILE, dir=layout.pgdata)
    with os.fdopen(descriptor, "w") as file:
        file.writelines(lines)
    account.own(Path(name))
    Path(name).replace(layout.pgdata / _SETTINGS_FILE)


def make_socket_dir(layout: Layout, account: Account) -> Path:
    """Return the folder for the socket: in the server's folder, or elsewhere when that path is too long."""
    folder = layout.socket_dir()
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="coordinator-s-", dir="/tmp"))
    else:
        folder.mkdir(mode=0o700, exist_ok=True)
    account.own(folder)
    return folder


def prepare_launch(
    layout: Layout,
    account: Account,
    *,
    bin_dir: Path | None,
    major: int | None,
    settings: Mapping[str, str],
    sync: bool = True,
    tcp_port: int | None = None,
) -> Launch:
    """Do all that comes before the start: binaries, data directory, settings, the socket's folder.

    Raises:
        ConfigError: If the binaries, the folder or a setting are wrong.
        UnavailableError: If the data directory cannot be made.
    """
    account.require_reach(layout.root)
    chosen = readable_binaries(choose_binaries(layout, bin_dir, major), account)
    create(layout, chosen, account, sync=sync)
    configure(layout, account, settings)
    return Launch(layout, chosen, account, make_socket_dir(layout, account), tcp_port)


def log_tail(layout: Layout) -> str:
    """Return the last lines of the server's log."""
    try:
        return "\n".join(layout.log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:])
    except FileNotFoundError:
        return "(empty)"


def _remove_left_over_pid_file(pgdata: Path) -> None:
    """Remove a postmaster.pid whose number now belongs to another program: PostgreSQL would refuse to start."""
    file = processes.read_pid_file(pgdata)
    if file is None or not processes.exists(file.pid) or processes.postmaster_pid(pgdata) is not None:
        # Missing; or its process is gone, and PostgreSQL looks for survivors and removes it; or a server is running.
        return
    # The file also leads PostgreSQL to the shared memory of backends that outlived their postmaster. While there may be
    # such, it stays: to start beside them would destroy the data.
    if not processes.has_orphaned_backends(pgdata.stat().st_uid):
        (pgdata / "postmaster.pid").unlink(missing_ok=True)
