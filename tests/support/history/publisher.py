"""A publishing process of the fault suite: several threads at a rate, in all the ways there are to publish.

Started as a program with a task in JSON. SIGTERM ends it when what it is at is done.

The rate is that of messages whose COMMIT was asked for: what is rolled back by choice does not count. A thread that has
fallen behind catches up on one second, not on more: after an outage there is no flood.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RATE_PER_THREAD = 20.0
# How often a transaction begins on a new connection; the others have the thread's own.
FRESH = 0.05
CATCH_UP_S = 1.0


@dataclass(frozen=True, slots=True)
class Task:
    """rate: messages per second of the process. odd: probabilities of what messages ask of handlers.

    Attributes:
        threads: None for as many as the rate takes where a call lasts some 60 ms: a server that is busy with consumers, a disk that
            is busy with commits, and transactions that are held open on purpose.
    """

    dsn: str
    folder: str
    name: str
    topic: str
    rate: float
    seed: int
    threads: int | None = None
    keys: int = 200
    odd: dict[str, float] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        return json.dumps(asdict(self))

    @property
    def width(self) -> int:
        return self.threads or max(3, round(self.rate / RATE_PER_THREAD))


class _Own(threading.local):
    """What a thread keeps."""

    connection: Any = None


class Publisher:
    """Threads that share one coordinator."""

    def __init__(self, task: Task) -> None:
        from support.history.recorder import Recorder

        from coordinator import Coordinator, Settings

        self.task = task
        self.recorder = Recorder(task.folder, task.name)
        self.recorder.say("process", name=task.name, kind="publisher", groups={})
        settings = Settings(**{"pool_size": task.width, **task.settings})
        self.app = Coordinator(task.dsn, client_id=task.name, settings=settings)
        self.stop = threading.Event()
        self._own = _Own()

    def run(self) -> int:
        signal.signal(signal.SIGTERM, lambda *_: self.stop.set())
        threads = [threading.Thread(target=self._publish, args=(number,)) for number in range(self.task.width)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.2)
        self.app.close()
        self.recorder.say("ended", code=0)
        return 0

    def _publish(self, thread: int) -> None:
        chance = random.Random(f"{self.task.seed}-{self.task.name}-{thread}")
        serial = 0
        due_s = time.monotonic()
        while not self.stop.is_set():
            # How many it will be is decided first, so that the rate is that of messages.
            count = chance.choice((1, 1, 1, 2, 10))
            names = [f"{self.task.name}-{thread}-{serial + number}" for number in range(count)]
            serial += count
            way = chance.choices((self._alone, self._once, self._transaction), (6, 2, 3))[0]
            if way(chance, f"{self.task.name}-{thread}-{serial}", names):
                due_s += count * self.task.width / self.task.rate
            due_s = max(due_s, time.monotonic() - CATCH_UP_S)
            self.stop.wait(max(due_s - time.monotonic(), 0))
        self._drop_connection()

    def _messages(self, chance: random.Random, names: list[str], dedup: bool = False) -> list[Any]:
        from coordinator import Outgoing

        made = []
        for name in names:
            value = {"id": name}
            kinds = [kind for kind, share in self.task.odd.items() if chance.random() < share]
            if kinds:
                value["do"] = kinds[0]
            key = f"k{chance.randrange(self.task.keys)}" if chance.random() < 0.8 else None
            made.append(Outgoing(value, key, dedup_key=name if dedup else None))
        return made

    def _alone(self, chance: random.Random, name: str, names: list[str]) -> bool:
        """In a transaction of its own; not repeated, so an outcome may stay unknown."""
        from coordinator.errors import CoordinatorError

        messages = self._messages(chance, names)
        self.recorder.say("publish", id=name, topic=self.task.topic, values=names)
        try:
            places = self.app.publish_many(self.task.topic, messages)
        except CoordinatorError as error:
            self._lost(name, error)
        else:
            self._told(name, places)
        return True

    def _once(self, chance: random.Random, name: str, names: list[str]) -> bool:
        """With a dedup key, repeated until it is sure."""
        from coordinator.errors import CoordinatorError

        messages = self._messages(chance, names, dedup=True)
        self.recorder.say("publish", id=name, topic=self.task.topic, values=names, dedup=True)
        while True:
            try:
                places = self.app.publish_many(self.task.topic, messages)
            except CoordinatorError as error:
                self._lost(name, error)
                if self.stop.wait(0.1):
                    return True
            else:
                self._told(name, places)
                return True

    def _transaction(self, chance: random.Random, name: str, names: list[str]) -> bool:
        """In the caller's transaction, which may take its time, take something back to a savepoint, or be rolled back."""
        import psycopg

        from coordinator.errors import CoordinatorError

        messages = self._messages(chance, names)
        self.recorder.say("publish", id=name, topic=self.task.topic, values=names)
        rolled_back = chance.random() < 0.25
        try:
            connection = self._connection(fresh=chance.random() < FRESH)
            repeatable = chance.random() < 0.2
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ if repeatable else None
            if repeatable:
                connection.execute("select 1 from pg_class limit 1")
            before, after = chance.random() < 0.1, chance.random() < 0.1
            if before:
                connection.execute("select 1")
                self._take_back(connection, chance, f"{name}-before")
            places = self.app.publish_many(self.task.topic, messages, connection=connection)
            if after:
                self._take_back(connection, chance, f"{name}-after")
            if chance.random() < 0.3:
                self.stop.wait(chance.uniform(0.0, 0.3))
            self.recorder.say("rollback" if rolled_back else "commit", id=name)
            if rolled_back:
                connection.rollback()
            else:
                connection.commit()
        except (psycopg.Error, CoordinatorError) as error:
            self._drop_connection()
            self._lost(name, error)
        else:
            self._told(name, places, "rolled back" if rolled_back else "returned")
        return not rolled_back

    def _take_back(self, connection: Any, chance: random.Random, name: str) -> None:
        """In a savepoint, which is rolled back."""
        import psycopg

        messages = self._messages(chance, [name])
        self.recorder.say("publish", id=name, topic=self.task.topic, values=[name])
        with connection.transaction() as savepoint:
            places = self.app.publish_many(self.task.topic, messages, connection=connection)
            raise psycopg.Rollback(savepoint)
        self._told(name, places, "rolled back")

    def _connection(self, *, fresh: bool) -> Any:
        """This thread's, outside of a transaction."""
        import psycopg

        if fresh:
            self._drop_connection()
        if self._own.connection is None:
            # Nothing is prepared: behind a pooler another session may lack it.
            self._own.connection = psycopg.connect(self.task.dsn, connect_timeout=5, prepare_threshold=None)
        return self._own.connection

    def _drop_connection(self) -> None:
        connection, self._own.connection = self._own.connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()

    def _told(self, name: str, places: Any, outcome: str = "returned") -> None:
        self.recorder.say("published", id=name, outcome=outcome, places=[[p.partition, p.offset] for p in places])

    def _lost(self, name: str, error: Exception) -> None:
        self.recorder.say("published", id=name, outcome="unknown", error=type(error).__name__)


if __name__ == "__main__":
    here = Path(__file__).resolve()
    sys.path[:] = [str(here.parents[3]), str(here.parents[2])] + [
        place for place in sys.path if Path(place or ".").resolve() != here.parent
    ]
    sys.exit(Publisher(Task(**json.loads(sys.argv[1]))).run())
