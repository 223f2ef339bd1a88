"""What a process says of its acts, where no SIGKILL takes it away.

Each event is one line of JSON that one write(2) appends to the process's own file (O_APPEND) *before* the act that it
announces: what was written is in the page cache, and survives the process. What came of an act is a line of its own, `told`:
"returned", "raised" (it is known not to have happened) or "unknown". Times are the host's wall clock, because processes are
compared with each other and with the server; all of them run on one host.

| event | before | facts |
|---|---|---|
| process | everything | name, kind, and per group: ordering, transactional, concurrency, batch_size, budgets, visibility_s |
| publish | a publish is sent | id, topic, values, key, dedup |
| commit | the COMMIT of a publisher's transaction | id |
| rollback | its ROLLBACK | id |
| published | told: what came of it | id, outcome, places |
| start | a handler begins | run, group, topic, partition, offset, epoch, attempt, value, key, batch |
| ack, fail, reject | a handler says so: it returns, raises, or calls the method | run, delay_s |
| told | told: what came of acks that somebody waited for | runs, outcome, error |
| broken | told: a handler was ended by its connection, or cancelled | run, error |
| die | a handler kills its own process | run |
| exchanges | told, every few seconds: how long exchanges took | tenths_ms |
"""

from __future__ import annotations

import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

SUFFIX = ".events"


class Recorder:
    """Appends events to one file; for any number of threads."""

    def __init__(self, folder: Path | str, name: str) -> None:
        self.path = Path(folder) / f"{name}{SUFFIX}"
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._runs = itertools.count(1)

    def say(self, event: str, **facts: Any) -> None:
        """Announce an act."""
        os.write(self._file, json.dumps({"event": event, "at": time.time(), **facts}).encode() + b"\n")

    def start(self, message: Any, batch: int | None = None) -> int:
        """Announce a handler's start; returns the number by which the run is named from now on."""
        run = next(self._runs)
        self.say(
            "start",
            run=run,
            group=message.group,
            topic=message.topic,
            partition=message.partition,
            offset=message.offset,
            epoch=message.epoch,
            attempt=message.attempt,
            value=message.value["id"],
            key=message.key,
            batch=batch,
        )
        return run

    def next_batch(self) -> int:
        """Return a number for messages that are handed over together."""
        return next(self._runs)

    def close(self) -> None:
        os.close(self._file)


def read(path: Path) -> list[dict[str, Any]]:
    """Read the events of a file; half a line at its end, which a full disk can leave, is none."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
