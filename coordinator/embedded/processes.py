"""What the operating system says about the processes of a server, in /proc or by `ps`."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class PidFile:
    """What postmaster.pid says. Its status line is what pg_ctl waits for, too."""

    pid: int
    port: int
    socket_dir: str
    status: str

    @property
    def ready(self) -> bool:
        return self.status in {"ready", "standby"}


def read_pid_file(pgdata: Path) -> PidFile | None:
    """Return the contents of postmaster.pid; None while it is missing or only half written."""
    try:
        lines = (pgdata / "postmaster.pid").read_text().splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return None
    # pid, data directory, start time, port, socket directory, listen address, shared memory key, status
    if not lines or not lines[0].strip().lstrip("-").isdigit():
        return None
    lines += [""] * (8 - len(lines))
    port = lines[3].strip()
    return PidFile(abs(int(lines[0])), int(port) if port.isdigit() else 0, lines[4].strip(), lines[7].strip())


def postmaster_pid(pgdata: Path) -> int | None:
    """Return the pid of the server that runs on `pgdata`; None if postmaster.pid is missing or left over."""
    file = read_pid_file(pgdata)
    return file.pid if file is not None and _is_postmaster(file.pid, pgdata) else None


def _is_postmaster(pid: int, pgdata: Path) -> bool:
    if not exists(pid):
        return False
    if not _has_proc():
        return True
    # The pid may belong to somebody else by now (in containers small numbers come again soon), or be a zombie, whose
    # command line is empty. The command line is readable for everybody; /proc/<pid>/cwd would need more rights.
    arguments = _command_line(pid)
    return any(os.path.realpath(os.fsdecode(argument)) == str(pgdata) for argument in arguments if argument)


def exists(pid: int) -> bool:
    """Is there a process `pid`, zombies included?"""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def children(pid: int) -> list[int]:
    """Return the child processes of `pid` at this moment."""
    return [child for child, parent in _parents() if parent == pid]


def has_orphaned_backends(uid: int) -> bool:
    """Do server processes of user `uid` run whose postmaster is gone? They may still write to its data directory."""
    if not _has_proc():
        return True
    for pid, parent in _parents():
        try:
            owner = (_PROC / str(pid)).stat().st_uid
        except FileNotFoundError:
            continue
        if owner == uid and _is_backend(pid) and b"postgres" not in _command_line(parent)[0].rpartition(b"/")[2]:
            return True
    return False


def _is_backend(pid: int) -> bool:
    return _command_line(pid)[0].startswith(b"postgres: ")


def is_running(pid: int) -> bool:
    """Is `pid` a process that can still do something, and no zombie?"""
    if not exists(pid):
        return False
    if not _has_proc():
        return True
    fields = _stat_fields(pid)
    return fields is not None and fields[0] not in {"Z", "X"}


def _command_line(pid: int) -> list[bytes]:
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return [b""]


def _stat_fields(pid: int) -> list[str] | None:
    """Return the fields of /proc/<pid>/stat from the state on; the name before it may hold spaces and brackets."""
    try:
        return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


def _parents() -> list[tuple[int, int]]:
    if _has_proc():
        pids = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]
        found = [(pid, _stat_fields(pid)) for pid in pids]
        return [(pid, int(fields[1])) for pid, fields in found if fields is not None]
    listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], check=True, capture_output=True, text=True).stdout
    return [(int(pid), int(parent)) for pid, parent in (line.split() for line in listing.splitlines())]


def _has_proc() -> bool:
    return (_PROC / "self" / "stat").exists()
