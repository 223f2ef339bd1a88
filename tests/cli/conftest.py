"""Run the command: in this process where that will do, as a process where pipes, signals and exits matter."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest
from click.testing import CliRunner

import coordinator
from coordinator.cli.main import cli

# Above what a slow machine needs, below what a person waits for.
LIMIT_S = 60


@dataclass(frozen=True)
class Ended:
    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def objects(self) -> list[Any]:
        return [json.loads(line) for line in self.lines]


class Call(Protocol):
    def __call__(self, *arguments: object, stdin: bytes = b"") -> Ended: ...


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config) -> None:
    """No database of the person who runs the tests is ever meant."""
    for name in list(os.environ):
        if name.startswith(("COORDINATOR_", "PG")) or name == "DATABASE_URL":
            monkeypatch.delenv(name)
    monkeypatch.setenv("NO_COLOR", "1")
    if pytestconfig.getoption("--pgbouncer"):
        # As its operator would: what is only guessed is a warning in each command.
        monkeypatch.setenv("COORDINATOR_POOLER", "transaction")
    root = Path(coordinator.__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", str(root))


@pytest.fixture
def call() -> Call:
    """Call in this process, without a database unless the arguments or the environment name one."""

    def run(*arguments: object, stdin: bytes = b"") -> Ended:
        result = CliRunner().invoke(cli, [str(argument) for argument in arguments], input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ended(result.exit_code, result.stdout_bytes, result.stderr)

    return run


@pytest.fixture
def on(call: Call, dsn: str, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Call in this process, on a fresh database."""
    monkeypatch.setenv("COORDINATOR_DSN", dsn)
    return call


@pytest.fixture
def start() -> Any:
    """Start a process of the command; the test ends it, or the end of the test does."""
    started: list[subprocess.Popen[bytes]] = []

    def popen(*arguments: object, **options: Any) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "coordinator.cli", *map(str, arguments)],
            stdin=options.pop("stdin", subprocess.DEVNULL),
            stdout=options.pop("stdout", subprocess.PIPE),
            stderr=subprocess.PIPE,
            **options,
        )
        started.append(process)
        return process

    yield popen
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None and not stream.closed:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


@pytest.fixture
def run(start: Any) -> Call:
    """Run as a process of its own, to its end."""

    def run_process(*arguments: object, stdin: bytes = b"") -> Ended:
        process = start(*arguments, stdin=subprocess.PIPE)
        out, err = process.communicate(stdin, timeout=LIMIT_S)
        return Ended(process.returncode, out, err.decode())

    return run_process
