"""The wire between the demo and its processes: a task in, events out, and the end of the parent noticed."""

import json
import os
import signal
import sys
import threading
from typing import Any

from coordinator.cli.demo.plan import Task

_STDIN = 0


def receive_task() -> Task:
    """Read the task, then watch the parent: when its end of the pipe closes, however it died, end as on SIGTERM."""
    line = b""
    # Not sys.stdin: a daemon thread that waits inside its lock makes the interpreter abort at exit.
    while not line.endswith(b"\n"):
        byte = os.read(_STDIN, 1)
        if not byte:
            sys.exit("the parent has gone before it said what to do")
        line += byte
    threading.Thread(target=_end_with_parent, name="lifeline", daemon=True).start()
    return Task.from_line(line.decode())


def report(event: str, **facts: Any) -> None:
    """Tell the parent something, as one line of JSON."""
    # One write, because handlers may report from several threads.
    os.write(sys.stdout.fileno(), (json.dumps({"event": event, **facts}) + "\n").encode())


def _end_with_parent() -> None:
    while os.read(_STDIN, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
