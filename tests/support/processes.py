"""Real consumer processes that write down what they do, before they do it, where SIGKILL cannot take it away.

Each event is one line that one write(2) appends to a file: what a process has announced is in the page cache, and survives it.
`start` before a message is worked on, `ack` before it is acked, `committed` when the ack is durable; `stale` when it was
refused. The file is this module, started as a program.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import TracebackType

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Task:
    """What a process does.

    Attributes:
        mode: "iterate" (ack each, wait every time), "queue" (acks do not wait), "batch" (20 at a time, then commit), or
            "subscribe" (@app.subscribe and run until SIGTERM), or "ledger" (the same, transactional: each value is
            inserted into the table effects).
        shell: "threads" or "asyncio"; the latter knows the modes "subscribe" and "ledger".
        work_s: How long each message takes.
        freeze_after: The handler of the message after so many never returns; None for never.
        settings: Keyword arguments of Settings.
        options: Of @subscribe, or of the consumer.
        raise_on: The handler fails for these values, or always; kill_on: it kills its own process by SIGKILL.
        quiet: Neither messages are witnessed nor logged: for very many of them.
    """

    dsn: str
    topic: str
    group: str
    client_id: str = "process"
    mode: str = "iterate"
    shell: str = "threads"
    work_s: float = 0.0
    freeze_after: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    raise_on: list[Any] = field(default_factory=list)
    raise_always: bool = False
    quiet: bool = False
    kill_on: list[Any] = field(default_factory=list)
    static_id: str | None = None


class Process:
    """One child. Use it as a context manager: what still runs at the end is killed."""

    def __init__(self, task: Task, folder: Path, name: str = "") -> None:
        self.task = task
        self.path = folder / f"{name or task.client_id}-{time.monotonic_ns()}.events"
        self._errors = self.path.with_suffix(".errors")
        with self._errors.open("wb") as errors:
            self._popen = subprocess.Popen(
                [sys.executable, __file__, json.dumps(asdict(task)), str(self.path)],
                # Its end is the end of the child: one that outlived a killed run would take the machine's time for ever.
                stdin=subprocess.PIPE,
                stdout=errors,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": str(_ROOT)},
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """What it has written so far; a line that is not whole yet is left out."""
        if not self.path.exists():
            return []
        lines = self.path.read_bytes().split(b"\n")[:-1]
        found = [json.loads(line) for line in lines]
        return [event for event in found if kind is None or event["event"] == kind]

    def places(self, kind: str) -> list[tuple[int, int]]:
        """(partition, offset) of the events of a kind, in order."""
        return [(event["partition"], event["offset"]) for event in self.events(kind)]

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    def errors(self) -> str:
        return self._errors.read_text(errors="replace")

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._popen.kill()
        self._popen.wait()

    def freeze(self) -> None:
        self._popen.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._popen.send_signal(signal.SIGCONT)

    def signal(self, number: int) -> None:
        self._popen.send_signal(number)

    def wait(self, limit_s: float = 15.0) -> int:
        """The exit code; raises subprocess.TimeoutExpired if it does not end."""
        return self._popen.wait(limit_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.running:
            self.kill()
        assert self._popen.stdin is not None
        self._popen.stdin.close()
        if kind is not None:
            sys.stderr.write(f"--- {self.path.name}\n{self.errors()}\n")


class _Witness:
    """What children of both shells tell."""

    def __init__(self, task: Task, path: str) -> None:
        self._task = task
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._count = 0
        if task.quiet:
            logging.getLogger("coordinator").setLevel(logging.CRITICAL)

    def _subscribe(self, app: Any, one: Any, book: Any, book_batch: Any) -> None:
        ledger = self._task.mode == "ledger"
        batch = self._task.options.get("batch_size", 1) > 1
        handler = (book_batch if batch else book) if ledger else one
        app.subscribe(self._task.topic, group=self._task.group, transactional=ledger, **self._task.options)(handler)
        self._say("ready")

    def _started(self, message: Any) -> bool:
        """Do what is to be done before the work; True if the handler is never to return."""
        self._say("start", message)
        if message.value in self._task.kill_on:
            os.kill(os.getpid(), signal.SIGKILL)
        if self._task.raise_always or message.value in self._task.raise_on:
            self._say("failed", message)
            raise ValueError(message.value)
        self._count += 1
        if self._task.freeze_after is None or self._count <= self._task.freeze_after:
            return False
        self._say("frozen", message)
        return True

    def _say(self, event: str, message: Any = None, **facts: Any) -> None:
        if message is not None:
            if self._task.quiet:
                return
            facts |= {
                "partition": message.partition,
                "offset": message.offset,
                "epoch": message.epoch,
                "attempt": message.attempt,
                "value": message.value,
            }
        # The wall clock, because processes are compared; all on one host.
        os.write(self._file, json.dumps({"event": event, "at": time.time(), **facts}).encode() + b"\n")


_INSERT = "insert into effects values (%s, %s, %s, %s)"


def _effect(message: Any) -> tuple[Any, ...]:
    return (message.value, message.topic, message.partition, message.offset)


class _AsyncChild(_Witness):
    def run(self) -> int:
        import asyncio

        return asyncio.run(self._run())

    async def _run(self) -> int:
        from coordinator import AsyncCoordinator, Settings

        task = self._task
        async with AsyncCoordinator(
            task.dsn, client_id=task.client_id, static_id=task.static_id, settings=Settings(**task.settings)
        ) as app:
            self._subscribe(app, self._handle, self._book, self._book_batch)
            code = await app.run()
            self._say("ended", code=code)
            return int(code)

    async def _book(self, message: Any, connection: Any) -> None:
        await connection.execute(_INSERT, _effect(message))
        await self._handle(message)

    async def _book_batch(self, batch: Any, connection: Any) -> None:
        for message in batch:
            await self._book(message, connection)

    async def _handle(self, message: Any) -> None:
        import asyncio

        if self._started(message):
            await asyncio.Event().wait()
        await asyncio.sleep(self._task.work_s)
        if self._task.mode == "subscribe":
            self._say("ack", message)


class _Child(_Witness):
    def run(self) -> int:
        from coordinator import Coordinator, Settings

        task = self._task
        self.app = Coordinator(
            task.dsn, client_id=task.client_id, static_id=task.static_id, settings=Settings(**task.settings)
        )
        if task.mode in ("subscribe", "ledger"):
            self._subscribe(self.app, self._handle, self._book, self._book_batch)
            code = self.app.run()
            self._say("ended", code=code)
            return code
        # SIGTERM ends the loops below as Ctrl-C does; leaving the consumer's context closes it.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            with self.app.consumer(
                self._task.topic, group=self._task.group, static_id=self._task.static_id, **self._task.options
            ) as consumer:
                self._say("ready")
                if self._task.mode == "batch":
                    self._batches(consumer)
                else:
                    self._iterate(consumer)
        except KeyboardInterrupt:
            pass
        self._say("ended", code=0)
        return 0

    def _iterate(self, consumer: Any) -> None:
        from coordinator.errors import FencedError, UnavailableError

        for message in consumer:
            self._handle(message)
            self._say("ack", message)
            try:
                message.ack(wait=self._task.mode == "iterate")
            except FencedError as error:
                self._say("stale", message, error=type(error).__name__)
            except UnavailableError:
                self._say("unknown", message)
            else:
                self._say("committed" if self._task.mode == "iterate" else "queued", message)

    def _batches(self, consumer: Any) -> None:
        from coordinator.errors import FencedError

        for batch in consumer.batches(20):
            for message in batch:
                self._handle(message)
            try:
                for message in batch:
                    self._say("ack", message)
                    message.ack()
                consumer.commit()
            except FencedError as error:
                for message in batch:
                    self._say("stale", message, error=type(error).__name__)
            else:
                for message in batch:
                    self._say("committed", message)

    def _book(self, message: Any, connection: Any) -> None:
        connection.execute(_INSERT, _effect(message))
        self._handle(message)

    def _book_batch(self, batch: Any, connection: Any) -> None:
        for message in batch:
            self._book(message, connection)

    def _handle(self, message: Any) -> None:
        if self._started(message):
            while True:
                time.sleep(3600)
        if self._task.work_s:
            time.sleep(self._task.work_s)
        if self._task.mode == "subscribe":
            self._say("ack", message)


if __name__ == "__main__":
    # Its own folder would hide the standard library's module of a name in it.
    sys.path[:] = [place for place in sys.path if Path(place or ".").resolve() != Path(__file__).parent]
    asked = Task(**json.loads(sys.argv[1]))
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(1)), daemon=True).start()
    child = _AsyncChild(asked, sys.argv[2]) if asked.shell == "asyncio" else _Child(asked, sys.argv[2])
    sys.exit(child.run())
