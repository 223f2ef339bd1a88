"""What a piece of work costs the server: processor time, where its processes can be seen from here, and WAL."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

_WAL: "psycopg.abc.Query" = "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters of a server at a moment; `cpu_s` is None where its processes are not to be seen."""

    cpu_s: float | None
    wal_bytes: int


class Meter:
    """Reads the counters of the server behind a connection, which is in autocommit mode."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._postmaster: int | None = None
        # Behind another machine's socket the same number is somebody else's process, or nobody's.
        if connection.info.host.startswith("/") or connection.info.hostaddr in ("127.0.0.1", "::1"):
            with suppress(OSError):
                self._postmaster = _stat(connection.info.backend_pid)[0]

    def read(self) -> Reading:
        row = self._connection.execute(_WAL).fetchone()
        assert row is not None
        return Reading(self._cpu_s(), row[0])

    def settle(self) -> None:
        """Make the next pieces of work alike: what is dirty now is written now, if the role may say so."""
        with suppress(psycopg.Error):
            self._connection.execute("checkpoint")

    def _cpu_s(self) -> float | None:
        if self._postmaster is None:
            return None
        ticks = 0
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with suppress(OSError):
                parent, own, ended = _stat(entry.name)
                if parent == self._postmaster:
                    ticks += own
                elif int(entry.name) == self._postmaster:
                    ticks += own + ended
        return ticks / os.sysconf("SC_CLK_TCK")


def _stat(pid: int | str) -> tuple[int, int, int]:
    """The parent of a process; ticks that it has used, and those of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
    return int(fields[1]), sum(map(int, fields[11:13])), sum(map(int, fields[13:15]))
