"""The process that answers for a server: it stops the server when the last client is gone, however that went.

Two tasks, each in a process of its own, which runs `main` with the task as JSON:

- keep: the parent of a shared server. Starts it, starts it again if it dies, stops it when nobody holds the clients'
  lock any more.
- guard: stands beside a private server. Waits for the end of the process that started the server, then stops what is
  left of it and removes a temporary folder.

It holds none of its clients' locks and no pipe; the kernel tells it that a client is gone by giving it the lock.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict

import coordinator
from coordinator.embedded.account import Account
from coordinator.embedded.locks import FileLock
from coordinator.embedded.places import Layout
from coordinator.embedded.postmaster import Launch, Postmaster
from coordinator.errors import CoordinatorError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

SHARED = "shared"
# Not -m: the package imports this module, which would then be there twice.
_PROGRAM = "import sys; from coordinator.embedded.keeper import main; main(sys.argv[1:])"
_POLL_INTERVAL_S = 0.2
_RESTART_DELAY_S = 0.2
_RESTART_TIMEOUT_S = 60.0


class _Task(TypedDict):
    kind: Literal["keep", "guard"]
    root: str
    bin_dir: str
    socket_dir: str
    uid: int
    gid: int
    other: bool
    start_timeout_s: float
    remove_root: bool
    report_descriptor: int


def spawn_keeper(launch: Launch, start_timeout_s: float) -> None:
    """Start a keeper with its server, and wait until the server takes connections.

    Raises:
        UnavailableError: If the server does not start; with the end of its log.
    """
    reader, writer = os.pipe()
    try:
        # It leaves this process's family (it forks and its parent ends), so nobody here has to reap it.
        process = _spawn(_task("keep", launch, start_timeout_s, report_descriptor=writer), [writer])
    finally:
        os.close(writer)
    # The keeper ends its start by itself within start_timeout_s; its end closes the pipe whatever happens.
    with os.fdopen(reader) as report:
        said = report.read()
    process.wait()
    if said != "ready":
        raise UnavailableError(said or f"the keeper of the embedded server ended at its start; see {launch.layout.log}")


def spawn_guard(launch: Launch, *, remove_root: bool) -> subprocess.Popen[bytes]:
    """Start a guard for the private server of this process; it ends once the clients' lock is released."""
    return _spawn(_task("guard", launch, 0.0, remove_root=remove_root), [])


def _task(
    kind: Literal["keep", "guard"],
    launch: Launch,
    start_timeout_s: float,
    *,
    remove_root: bool = False,
    report_descriptor: int = -1,
) -> _Task:
    account = launch.account
    return _Task(
        kind=kind,
        root=str(launch.layout.root),
        bin_dir=str(launch.bin_dir),
        socket_dir=str(launch.socket_dir),
        uid=account.uid,
        gid=account.gid,
        other=account.other,
        start_timeout_s=start_timeout_s,
        remove_root=remove_root,
        report_descriptor=report_descriptor,
    )


def _spawn(task: _Task, descriptors: Sequence[int]) -> subprocess.Popen[bytes]:
    # -P keeps the working folder out of the import path: a folder named coordinator there must not be run, least of
    # all by root. The package's own place goes in, since this process may have found it in a way of its own.
    package_root = Path(coordinator.__path__[0]).resolve().parent
    with (Path(task["root"]) / "keeper.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM, json.dumps(task)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env={"PATH": os.defpath, "PYTHONPATH": str(package_root)},
            start_new_session=True,
            pass_fds=descriptors,
        )


def main(arguments: Sequence[str]) -> None:
    """Carry out the task that the one argument describes."""
    task: _Task = json.loads(arguments[0])
    launch = Launch(
        Layout(Path(task["root"])),
        Path(task["bin_dir"]),
        Account(task["uid"], task["gid"], task["other"]),
        Path(task["socket_dir"]),
    )
    if task["kind"] == "keep":
        _keep(launch, task["start_timeout_s"], task["report_descriptor"])
    else:
        _guard(launch, remove_root=task["remove_root"])


def _keep(launch: Launch, start_timeout_s: float, report_descriptor: int) -> None:
    # No thread has been started in this process, so a fork is safe.
    if os.fork() != 0:
        os._exit(0)
    layout = launch.layout
    in_charge = FileLock(layout.keeper_lock)
    clients = FileLock(layout.clients_lock)
    try:
        with os.fdopen(report_descriptor, "w") as report:
            try:
                in_charge.acquire(start_timeout_s)
                in_charge.write(SHARED)
                # There may be a server that has outlived its keeper, and clients with it: it stays as it is.
                server = Postmaster.adopt(launch) or Postmaster.start(launch, start_timeout_s)
            except CoordinatorError as error:
                report.write(str(error))
                return
            report.write("ready")
        while not clients.try_acquire():
            time.sleep(_POLL_INTERVAL_S)
            if not server.alive:
                # Ended on purpose (by an administrator) means ended. Killed means start again: clients reconnect.
                if server.exit_status == 0:
                    return
                server = _start_again(launch)
        # From here on a new client waits for the clients' lock, that is, until this process is gone, and then starts
        # a server of its own. Without that order it could attach to a server that is about to stop.
        server.stop()
    finally:
        _remove_socket_dir(launch)


def _start_again(launch: Launch) -> Postmaster:
    # The backends of a killed postmaster need a moment to notice; until then PostgreSQL refuses to start.
    deadline_s = time.monotonic() + _RESTART_TIMEOUT_S
    while True:
        time.sleep(_RESTART_DELAY_S)
        try:
            return Postmaster.start(launch, _RESTART_TIMEOUT_S)
        except UnavailableError:
            if time.monotonic() >= deadline_s:
                raise


def _guard(launch: Launch, *, remove_root: bool) -> None:
    clients = FileLock(launch.layout.clients_lock)
    clients.wait()
    left_over = Postmaster.adopt(launch)
    if left_over is not None:
        # What is removed anyway needs no clean shutdown.
        left_over.stop("immediate" if remove_root else "fast")
    _remove_socket_dir(launch)
    if remove_root:
        shutil.rmtree(launch.layout.root, ignore_errors=True)


def _remove_socket_dir(launch: Launch) -> None:
    # Only the one elsewhere, whose name nobody knows any more.
    if launch.socket_dir != launch.layout.sockets:
        shutil.rmtree(launch.socket_dir, ignore_errors=True)
