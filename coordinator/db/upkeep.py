"""What retention needs to be done now and then: a round of tasks, one statement and transaction at a time."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import psycopg

from coordinator.errors import CoordinatorError, UnavailableError
from coordinator.observe import events
from coordinator.observe.logs import logger, said
from coordinator.protocol.maintenance import (
    Dropped,
    Retired,
    Rotated,
    Skipped,
    Swept,
    dropping,
    fail_task,
    retirement,
    rotation,
    skipping,
    sweeping,
)
from coordinator.protocol.statement import Flow, Statement

log = logger(__name__)

ROUND_EVERY_S = 10.0

# In this order a segment goes: closed, passed by everybody, read no more, dropped.
TASKS: tuple[tuple[str, Callable[[], Flow[Any]]], ...] = (
    ("rotate", rotation),
    ("skip", skipping),
    ("retire", retirement),
    ("drop", dropping),
    ("sweep", sweeping),
)


@dataclass(slots=True)
class Kept:
    """What one round of retention did; `failures` are texts of errors, by task."""

    rotated: int = 0
    skipped: list[Skipped] = field(default_factory=list)
    retired: list[Retired] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    blocked: list[Dropped] = field(default_factory=list)
    swept: Swept | None = None
    failures: dict[str, str] = field(default_factory=dict)


class Upkeep:
    """Rounds of retention, a statement per call: a control loop sends its heartbeats between them.

    Several processes may do this at once; the functions let one work. What the database refuses ends that task for this
    round, is logged and written down; UnavailableError is raised.

    Attributes:
        last: The last complete round; None before.
    """

    def __init__(self, first_after_s: float | None = None) -> None:
        """Begin after `first_after_s`; None: within a round's time, not all processes at once."""
        self.last: Kept | None = None
        self._wait_s = random.uniform(0, ROUND_EVERY_S) if first_after_s is None else first_after_s  # noqa: S311
        self._at_s = 0.0
        self._kept = Kept()
        self._told: set[str] = set()
        self._statement: Statement[Any] | None = None
        self._task = ""
        self._tasks = iter(TASKS)
        self._flow: Flow[Any] | None = None

    def step(self, run: Callable[[Statement[Any]], Any], now_s: float) -> float:
        """Run the next statement, if it is time; return in how many seconds to come again."""
        if (pause_s := self._pause_s(now_s)) > 0:
            return pause_s
        self._advance(run)
        return self._pause_s(now_s)

    async def astep(self, run: Callable[[Statement[Any]], Awaitable[Any]], now_s: float) -> float:
        """`step` for an asynchronous `run`."""
        if (pause_s := self._pause_s(now_s)) > 0:
            return pause_s
        statement = self._next()
        try:
            answer = await run(statement)
        except (psycopg.Error, CoordinatorError) as error:
            self._on_error(error)
        else:
            self._on_answer(answer)
        return self._pause_s(now_s)

    def round(self, run: Callable[[Statement[Any]], Any]) -> Kept:
        """Run a whole round now."""
        before = self.last
        while self.last is None or self.last is before:
            self._advance(run)
        return self.last

    def _advance(self, run: Callable[[Statement[Any]], Any]) -> None:
        statement = self._next()
        try:
            answer = run(statement)
        except (psycopg.Error, CoordinatorError) as error:
            self._on_error(error)
        else:
            self._on_answer(answer)

    def _pause_s(self, now_s: float) -> float:
        if self._wait_s:
            self._at_s = now_s + self._wait_s
            self._wait_s = 0.0
        return self._at_s - now_s

    def _next(self) -> Statement[Any]:
        if self._statement is None:
            self._begin_task()
        assert self._statement is not None
        return self._statement

    def _begin_task(self) -> None:
        self._task, begin = next(self._tasks)
        self._flow = begin()
        self._statement = next(self._flow)

    def _on_answer(self, answer: Any) -> None:
        if self._flow is None:
            # The failure of the task is written down.
            self._end_task()
            return
        if self._task == "skip":
            # At once: it is committed, whatever becomes of the rest of the task.
            for one in answer:
                log.error(events.MESSAGES_SKIPPED, extra=one._asdict())
        try:
            self._statement = self._flow.send(answer)
        except StopIteration as end:
            self._take(end.value)
            self._end_task()

    def _on_error(self, error: Exception) -> None:
        if isinstance(error, UnavailableError):
            # The task begins anew on the next connection.
            self._flow = None
            self._reset()
            raise error
        if self._flow is None:
            self._end_task()
            return
        self._flow.close()
        self._flow = None
        self._kept.failures[self._task] = said(error)
        log.warning(events.MAINTENANCE_FAILED, extra={"task": self._task, "error": said(error)})
        self._statement = fail_task(self._task, said(error))

    def _end_task(self) -> None:
        self._statement = None
        self._flow = None
        if self._task == TASKS[-1][0]:
            self.last = self._kept
            self._wait_s = ROUND_EVERY_S * random.uniform(0.8, 1.2)  # noqa: S311
            self._reset()

    def _reset(self) -> None:
        self._kept = Kept()
        self._tasks = iter(TASKS)
        self._statement = None

    def _take(self, result: Any) -> None:
        kept = self._kept
        if isinstance(result, Rotated):
            kept.rotated = result.opened
        elif isinstance(result, Swept):
            kept.swept = result
            self._tell_swept(result)
        elif self._task == "skip":
            kept.skipped = result
        elif self._task == "retire":
            kept.retired = result
            for one in result:
                log.info(events.SEGMENT_RETIRED, extra=one._asdict())
        else:
            kept.dropped = [one for one in result if one.dropped]
            kept.blocked = [one for one in result if not one.dropped]
            for one in kept.dropped:
                log.info(events.SEGMENT_DROPPED, extra={"topic": one.topic, "segment": one.segment})
            self._tell_once({f"{one.topic} {one.segment} {one.blocked_by}": one._asdict() for one in kept.blocked})

    def _tell_once(self, blocked: dict[str, dict[str, Any]]) -> None:
        for what, facts in blocked.items():
            if what not in self._told:
                log.warning(events.SEGMENT_BLOCKED, extra=facts)
                self._told.add(what)

    def _tell_swept(self, swept: Swept) -> None:
        if swept.dead_letters:
            log.warning(events.DEAD_LETTERS_DROPPED, extra={"dropped": swept.dead_letters})
        for group in swept.deleted_groups:
            log.warning(events.GROUP_EXPIRED, extra={"group": group})
        for pin in swept.pinning:
            if pin not in self._told:
                group, topic = pin.rsplit(" ", 1)
                log.warning(events.GROUP_PINNING, extra={"group": group, "topic": topic})
                self._told.add(pin)
