"""The demo's processes as their parent sees them: started, listened to, killed, replaced, and never left behind."""

import contextlib
import json
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

from coordinator.cli.demo.plan import Role, Task
from coordinator.errors import CoordinatorError

_STDERR_TAIL_CHARACTERS = 2000
_STOP_LIMIT_S = 5.0


class DemoError(CoordinatorError):
    """The demo could not come to its end: a process failed, or the time was up."""


class Process:
    """One child: `python -m coordinator.cli.demo.worker`."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.name = task.name
        self.killed = False
        self._events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._event_by_name: dict[str, dict[str, Any]] = {}
        # A file and not a pipe: nobody has to read it for the child to go on.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "coordinator.cli.demo.worker", task.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
        )
        self._reader = threading.Thread(target=self._read, name=f"events of {task.name}", daemon=True)
        self._reader.start()
        assert self._popen.stdin is not None
        # The pipe stays open: its end tells the child that the parent is gone. A child that died is found by check().
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.write(task.to_line().encode())
            self._popen.stdin.flush()

    @property
    def pid(self) -> int:
        return self._popen.pid

    def event(self, name: str) -> dict[str, Any] | None:
        """Return the event of that name, if it was reported; each is reported once."""
        with contextlib.suppress(queue.Empty):
            while True:
                event = self._events.get_nowait()
                self._event_by_name[event.pop("event")] = event
        return self._event_by_name.get(name)

    def poisoning(self) -> dict[str, Any] | None:
        """Return what it said of the message that ended it; None if it runs, or ended as it should.

        Raises:
            DemoError: If it ended otherwise: not with exit code 0, not by `kill`, not by the poison message.
        """
        code = self._popen.poll()
        if not code or self.killed:
            return None
        # All that it said is read first.
        self._reader.join(_STOP_LIMIT_S)
        poisoned = self.event("poisoned")
        if code != -signal.SIGKILL or poisoned is None:
            raise DemoError(f"process {self.name} ended with exit code {code}", detail=self.errors())
        return poisoned

    def errors(self) -> str:
        """The end of what it wrote to standard error."""
        self._stderr.seek(0)
        return self._stderr.read().decode(errors="replace")[-_STDERR_TAIL_CHARACTERS:].strip()

    def is_running(self) -> bool:
        return self._popen.poll() is None

    def kill(self) -> None:
        """SIGKILL, and wait until the process is gone."""
        self.killed = True
        self._popen.kill()
        self._popen.wait()

    def terminate(self) -> None:
        self._popen.terminate()

    def exit_code(self, limit_s: float) -> int | None:
        """Wait for the end; None if it did not come in time."""
        try:
            return self._popen.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        """End it if it still runs, without patience, and let go of its files."""
        if self.is_running():
            self.kill()
        self._reader.join(_STOP_LIMIT_S)
        for stream in (self._popen.stdin, self._popen.stdout, self._stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            self._events.put(json.loads(line))


@dataclass(frozen=True, slots=True)
class Death:
    """The poison message has ended a process; `replaced_by` has taken its place."""

    process: str
    attempt: int
    replaced_by: str


class Processes:
    """All children of a run; leaving the context ends those that still run."""

    def __init__(self) -> None:
        self._all: list[Process] = []
        self._known_dead: set[Process] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for process in self._all:
            process.close()

    def __iter__(self) -> Iterator[Process]:
        return iter(self._all)

    def start(self, tasks: Iterable[Task]) -> list[Process]:
        started = []
        for task in tasks:
            process = Process(task)
            self._all.append(process)
            started.append(process)
        return started

    def replace(self, process: Process) -> Process:
        """Start another process for the same work, under the next free name."""
        role = process.task.role
        number = sum(other.task.role == role for other in self._all) + 1
        # Who dies before it could freeze leaves that to its successor, at its first message.
        freezes = process.task.freeze_after is not None and process.event("frozen") is None
        task = replace(process.task, name=f"{role}-{number}", freeze_after=1 if freezes else None)
        return self.start([task])[0]

    def supervise(self) -> list[Death]:
        """Replace what the poison message has ended since the last call.

        Raises:
            DemoError: If a process has failed in another way.
        """
        deaths = []
        for process in list(self._all):
            if process in self._known_dead:
                continue
            poisoning = process.poisoning()
            if poisoning is not None:
                self._known_dead.add(process)
                deaths.append(Death(process.name, poisoning["attempt"], self.replace(process).name))
        return deaths

    def stop(self, role: Role | None = None) -> None:
        """SIGTERM to all that run, or those with that role; every one must end with exit code 0.

        Raises:
            DemoError: If one does not, or takes too long.
        """
        running = [process for process in self._all if process.is_running() and role in (None, process.task.role)]
        for process in running:
            process.terminate()
        for process in running:
            code = process.exit_code(_STOP_LIMIT_S)
            if code != 0:
                what = "did not end" if code is None else f"ended with exit code {code}"
                raise DemoError(f"process {process.name} {what} after SIGTERM", detail=process.errors())
