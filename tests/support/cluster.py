"""A primary and a standby that follows it by streaming, on loopback: what a failover needs."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

import psycopg

from coordinator.embedded import EmbeddedServer
from coordinator.embedded.account import account_for
from coordinator.embedded.binaries import environment
from coordinator.embedded.places import Layout

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

_LIMIT_S = 30.0
_NAME = "standby"


class Cluster:
    """Both servers. `dsn` names both hosts; whoever takes writes is connected to."""

    def __init__(
        self, *, synchronous: bool, major: int | None = None, settings: Mapping[str, str] | None = None
    ) -> None:
        """Start both; with `synchronous` a COMMIT returns when the standby has it on disk. `settings`: of both."""
        self.primary = EmbeddedServer.start(tcp=True, major=major, settings=settings)
        self._root = Path(tempfile.mkdtemp(prefix="coordinator-standby-", dir="/tmp"))
        self.standby: EmbeddedServer | None = None
        try:
            self._copy()
            self.standby = EmbeddedServer.start(
                self._root, settings={**(settings or {}), "cluster_name": _NAME}, tcp=True
            )
            self._wait("select count(*) from pg_stat_replication where state = 'streaming'", 1)
            if synchronous:
                run(self.primary.dsn, f"alter system set synchronous_standby_names = '{_NAME}'")
                run(self.primary.dsn, "select pg_reload_conf()")
                self._wait("select count(*) from pg_stat_replication where sync_state = 'sync'", 1)
        except BaseException:
            self.close()
            raise
        addresses = [self.primary.tcp_address, self.standby.tcp_address]
        hosts, ports = ",".join(host for host, _ in addresses), ",".join(str(port) for _, port in addresses)
        password = quote(Layout(self.primary.data_dir).password.read_text(), safe="")
        self.dsn = f"postgresql://postgres:{password}@/postgres?host={hosts}&port={ports}&sslmode=disable"

    def detach(self) -> None:
        """Cut replication: the primary goes on, and the standby lacks what it commits from now on."""
        assert self.standby is not None
        run(self.standby.dsn, "alter system set primary_conninfo = ''")
        run(self.standby.dsn, "select pg_reload_conf()")
        self._wait("select count(*) from pg_stat_replication", 0)

    def catch_up(self) -> None:
        """Wait until the standby has replayed what the primary has written."""
        assert self.standby is not None
        (at,) = run(self.primary.dsn, "select pg_current_wal_insert_lsn()::text")[0]
        deadline_s = time.monotonic() + _LIMIT_S
        while not run(self.standby.dsn, "select pg_last_wal_replay_lsn() >= %s::pg_lsn", at)[0][0]:
            assert time.monotonic() < deadline_s, "the standby does not catch up"
            time.sleep(0.02)

    def fail_over(self) -> None:
        """SIGKILL the primary and promote the standby."""
        self.primary.kill()
        self.promote()

    def promote(self) -> None:
        assert self.standby is not None
        assert run(self.standby.dsn, "select pg_promote()") == [(True,)]

    def close(self) -> None:
        if self.standby is not None:
            self.standby.stop("immediate")
        self.primary.stop("immediate")
        shutil.rmtree(self._root, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _copy(self) -> None:
        account = account_for(self._root / "none")
        layout = Layout(self._root)
        # The server's folder, which only root may change, holds the data directory, which only the server may read.
        self._root.chmod(0o711)
        layout.start_lock.touch(mode=0o600)
        layout.pgdata.mkdir(mode=0o700)
        account.own(layout.pgdata)
        subprocess.run(
            [
                self.primary.bin_dir / "pg_basebackup",
                f"--dbname={self.primary.dsn}",
                f"--pgdata={layout.pgdata}",
                "--write-recovery-conf",
                "--wal-method=stream",
                "--create-slot",
                f"--slot={_NAME}",
                "--checkpoint=fast",
            ],
            check=True,
            capture_output=True,
            cwd="/",
            env=environment(self.primary.bin_dir),
            **account.identity,
        )
        shutil.copyfile(Layout(self.primary.data_dir).password, layout.password)
        layout.password.chmod(0o600)

    def _wait(self, text: str, wanted: int) -> None:
        deadline_s = time.monotonic() + _LIMIT_S
        while run(self.primary.dsn, text) != [(wanted,)]:
            assert time.monotonic() < deadline_s, f"never {wanted}: {text}"
            time.sleep(0.02)


def run(dsn: str, text: str, *parameters: object) -> list[tuple[Any, ...]]:
    """Run a statement of an administrator's."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(text, parameters)
        return cursor.fetchall() if cursor.description else []
