"""Processes that prepare themselves, wait for each other, and do their work at the same time."""

import multiprocessing
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from coordinator.cli.bench.meter import Meter
from coordinator.errors import UnavailableError

_PREPARE_LIMIT_S = 120.0
_WORK_LIMIT_S = 1800.0
_EXIT_LIMIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Work:
    """What a crowd has done.

    Attributes:
        elapsed_s: From the common start until the last one was done.
        client_cpu_s: Of all its processes, in that time; preparing and tidying up are not in it.
        server_cpu_s: None where the server's processes are not to be seen.
        results: What each has returned, in the order of the jobs.
    """

    elapsed_s: float
    client_cpu_s: float
    server_cpu_s: float | None
    wal_bytes: int
    results: Sequence[Any]


class Lap:
    """A process's part: `start` waits for all others, `stop` says that the work is done."""

    def __init__(self, go: Any, pipe: Connection) -> None:
        self._go = go
        self._pipe = pipe
        self._cpu_s = 0.0

    def start(self) -> None:
        self._pipe.send(None)
        self._go.wait()
        self._cpu_s = time.process_time()

    def stop(self) -> None:
        self._pipe.send((time.time(), time.process_time() - self._cpu_s))


Job = tuple[Callable[..., Any], tuple[Any, ...]]


def run(jobs: Sequence[Job], meter: Meter) -> Work:
    """Run each job in a process of its own, as `function(lap, *arguments)`.

    Raises:
        UnavailableError: A process ended before its work was done, or did not get ready; it has said why on stderr.
    """
    # Spawned: a fork would copy connections and threads.
    context = multiprocessing.get_context("spawn")
    go = context.Event()
    pipes, processes = [], []
    try:
        for place, (function, arguments) in enumerate(jobs):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=_child, args=(go, theirs, function, arguments), name=f"bench {place}", daemon=True
            )
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        for pipe in pipes:
            _next(pipe, _PREPARE_LIMIT_S)
        before, started_s = meter.read(), time.time()
        go.set()
        stops = [_next(pipe, _WORK_LIMIT_S) for pipe in pipes]
        after = meter.read()
        results = [_next(pipe, _EXIT_LIMIT_S) for pipe in pipes]
        for process in processes:
            process.join(_EXIT_LIMIT_S)
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
        for pipe in pipes:
            pipe.close()
    seen = before.cpu_s is not None and after.cpu_s is not None
    return Work(
        max(at_s for at_s, _ in stops) - started_s,
        sum(cpu_s for _, cpu_s in stops),
        (after.cpu_s or 0.0) - (before.cpu_s or 0.0) if seen else None,
        after.wal_bytes - before.wal_bytes,
        results,
    )


def _child(go: Any, pipe: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    pipe.send(function(Lap(go, pipe), *arguments))


def _next(pipe: Connection, limit_s: float) -> Any:
    if pipe.poll(limit_s):
        # Its end, where the process has ended.
        with suppress(EOFError):
            return pipe.recv()
    message = "a process of the bench has ended, or has not done its part in time; what it has said is above"
    raise UnavailableError(message)
