"""A publishing process of the fault suite: several threads at a rate, in all the ways there are to publish.

Started as a program with a task in JSON. SIGTERM ends it when what it is at is done.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Task:
    """rate: messages per second of the process. odd: probabilities of what messages ask of handlers."""

    dsn: str
    folder: str
    name: str
    topic: str
    rate: float
    seed: int
    threads: int = 3
    keys: int = 200
    odd: dict[str, float] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        return json.dumps(asdict(self))


class Publisher:
    """Threads that share one coordinator."""

    def __init__(self, task: Task) -> None:
        from support.history.recorder import Recorder

        from coordinator import Coordinator, Settings

        self.task = task
        self.recorder = Recorder(task.folder, task.name)
        self.recorder.say("process", name=task.name, kind="publisher", groups={})
        self.app = Coordinator(task.dsn, client_id=task.name, settings=Settings(**task.settings))
        self.stop = threading.Event()

    def run(self) -> int:
        signal.signal(signal.SIGTERM, lambda *_: self.stop.set())
        threads = [threading.Thread(target=self._publish, args=(number,)) for number in range(self.task.threads)]
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
            way(chance, f"{self.task.name}-{thread}-{serial}", names)
            due_s = max(due_s + count * self.task.threads / self.task.rate, time.monotonic() - 1.0)
            self.stop.wait(max(due_s - time.monotonic(), 0))

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

    def _alone(self, chance: random.Random, name: str, names: list[str]) -> None:
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

    def _once(self, chance: random.Random, name: str, names: list[str]) -> None:
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
                    return
            else:
                self._told(name, places)
                return

    def _transaction(self, chance: random.Random, name: str, names: list[str]) -> None:
        """In the caller's transaction, which may take its time, fail in a savepoint, or be rolled back."""
        import psycopg

        from coordinator.errors import CoordinatorError

        messages = self._messages(chance, names)
        self.recorder.say("publish", id=name, topic=self.task.topic, values=names)
        rolled_back = chance.random() < 0.25
        try:
            with psycopg.connect(self.task.dsn) as connection:
                if chance.random() < 0.2:
                    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                    connection.execute("select 1 from pg_class limit 1")
                places = self.app.publish_many(self.task.topic, messages, connection=connection)
                if chance.random() < 0.3:
                    self.stop.wait(chance.uniform(0.0, 0.3))
                self.recorder.say("rollback" if rolled_back else "commit", id=name)
                if rolled_back:
                    connection.rollback()
                else:
                    connection.commit()
        except (psycopg.Error, CoordinatorError) as error:
            self._lost(name, error)
        else:
            self._told(name, places, "rolled back" if rolled_back else "returned")

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
