"""PgBouncer in front of a server, in transaction mode: each transaction may be on another session than the one before."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import quote, urlencode

from psycopg.conninfo import conninfo_to_dict

from coordinator.embedded.account import account_for

if TYPE_CHECKING:
    from types import TracebackType

# Debian's package puts it where an ordinary user's PATH does not lead.
_PLACES = ("/usr/sbin", "/usr/local/sbin")
_START_S = 10.0
_SETTINGS = """
[databases]
* = {target}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users
# Every role of the server is let in, not only who started it.
auth_user = {user}
auth_query = select rolname, '' from pg_roles where rolname = $1
logfile = {folder}/log
pool_mode = {mode}
max_client_conn = 2000
default_pool_size = {size}
# Of the sessions that are free, another one each time: what is left on one is missing on the next.
server_round_robin = 1
min_pool_size = {least}
ignore_startup_parameters =
server_reset_query_always = {resets:d}
"""


def find_pgbouncer() -> str | None:
    """The program, or None."""
    return shutil.which("pgbouncer", path=os.pathsep.join([os.environ.get("PATH", ""), *_PLACES]))


class PgBouncer:
    """A pooler of its own on a free port. `through` gives the DSN that leads through it to a database of the server.

    Like a service it is started again when it dies: 1.18 (Debian 12) does, where a client goes away in the middle of a cancel.
    """

    def __init__(
        self, dsn: str, *, mode: str = "transaction", size: int = 80, least: int = 3, resets: bool = False
    ) -> None:
        """Start it in front of the server of `dsn`; it may end any of its sessions, so give it nothing precious.

        `resets`: after each transaction nothing is left on a session, a LISTEN neither.
        """
        program = find_pgbouncer()
        assert program is not None, "ask find_pgbouncer first"
        known = {key: str(value) for key, value in conninfo_to_dict(dsn).items()}
        self._folder = Path(tempfile.mkdtemp(prefix="coordinator-pgb-", dir="/tmp"))
        # It refuses to run as root, as the server does, and the server's socket is open to the server's account alone.
        account = account_for(self._folder / "none")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        target = " ".join(f"{key}={known[key]}" for key in ("host", "port") if key in known)
        settings = _SETTINGS.format(
            target=target,
            port=self.port,
            folder=self._folder,
            user=known["user"],
            mode=mode,
            size=size,
            least=least,
            resets=resets,
        )
        (self._folder / "ini").write_text(settings)
        (self._folder / "users").write_text(f'"{known["user"]}" "{known.get("password", "")}"\n')
        for path in (self._folder, *self._folder.iterdir()):
            account.own(path)
        self._command = [program, "-q", str(self._folder / "ini")]
        self._identity = account.identity
        self._lock = threading.Lock()
        self._closed = False
        self._process = self._spawn()
        self._wait_ready()
        self._keeper = threading.Thread(target=self._keep, name="pgbouncer")
        self._keeper.start()

    def through(self, dsn: str) -> str:
        """The same database, role and parameters, through the pooler."""
        known = {key: str(value) for key, value in conninfo_to_dict(dsn).items()}
        user, database = known.pop("user"), known.pop("dbname")
        for key in ("host", "port", "password"):
            known.pop(key, None)
        known["sslmode"] = "disable"
        return (
            f"postgresql://{quote(user, safe='')}@127.0.0.1:{self.port}/{quote(database, safe='')}?{urlencode(known)}"
        )

    def close(self) -> None:
        with self._lock:
            self._closed = True
            # SIGTERM: at once, whoever is connected.
            self._process.terminate()
        self._keeper.join()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _spawn(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            **self._identity,
        )

    def _keep(self) -> None:
        while True:
            self._process.wait()
            with self._lock:
                if self._closed:
                    return
                self._process = self._spawn()

    def _wait_ready(self) -> None:
        deadline_s = time.monotonic() + _START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline_s:
                    log = self._folder / "log"
                    told = log.read_text() if log.exists() else "(no log)"
                    self._process.kill()
                    self._process.wait()
                    shutil.rmtree(self._folder, ignore_errors=True)
                    raise RuntimeError(f"pgbouncer did not start: {told}") from None
                time.sleep(0.02)
            else:
                return
