"""A consumer process of the fault suite: reads its groups in threads or on asyncio, and announces what it does.

Started as a program with a task in JSON. What a message asks for is in its value: {"id": ..., "do": ...}, do being nothing,
"fail once", "fail", "reject" or "die" (the handler of the group "plain" kills its own process).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

EFFECT = "insert into history.effects values (%s, %s, %s, %s, %s)"
RETRY_S = 0.3


@dataclass(frozen=True, slots=True)
class Reads:
    """One group. batch_size above 1: the handler gets lists. explicit: a consumer's loop instead of run(), which asks for `ask`."""

    group: str
    topics: list[str]
    ordering: str = "key"
    transactional: bool = False
    concurrency: int = 2
    batch_size: int = 1
    explicit: bool = False
    ask: int = 10
    max_attempts: int = 4
    max_crashes: int = 3


@dataclass(frozen=True, slots=True)
class Task:
    """kind: "threads" or "asyncio". work_s: how long each message takes."""

    dsn: str
    folder: str
    name: str
    reads: list[Reads]
    kind: str = "threads"
    work_s: float = 0.0
    settings: dict[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> Task:
        facts = json.loads(text)
        return cls(**(facts | {"reads": [Reads(**reads) for reads in facts["reads"]]}))


class Acts:
    """What both kinds of process do with a message."""

    def __init__(self, task: Task) -> None:
        from support.history.recorder import Recorder

        self.task = task
        self.recorder = Recorder(task.folder, task.name)
        self.recorder.say(
            "process",
            name=task.name,
            kind=task.kind,
            pid=os.getpid(),
            visibility_s=task.settings.get("visibility_timeout_s", 30.0),
            max_holes=task.settings.get("max_holes", 256),
            max_parked=task.settings.get("max_parked", 10_000),
            prefetch=task.settings.get("prefetch", 500),
            lease_s=task.settings.get("lease_s", 10.0),
            poll_s=task.settings.get("membership_poll_s", 2.0),
            groups={reads.group: asdict(reads) for reads in task.reads},
        )

    def judge(self, message: Any, run: int, reads: Reads) -> None:
        """Do what the message asks for, said before; returning means that it is to be acked."""
        from coordinator import Reject, Retry

        do = message.value.get("do")
        if do == "die" and reads.group == "plain":
            self.recorder.say("die", run=run)
            os.kill(os.getpid(), signal.SIGKILL)
        if do == "fail" or (do == "fail once" and message.attempt == 1):
            self.recorder.say("fail", run=run, delay_s=RETRY_S)
            raise Retry(RETRY_S)
        if do == "reject":
            self.recorder.say("reject", run=run)
            raise Reject("as asked")

    def judge_together(self, messages: list[Any], runs: list[int], reads: Reads) -> None:
        """The same for messages of one transaction: what one of them asks for befalls all, so each that fails comes alone next time.

        Nobody is rejected or killed in company: that is for when it comes alone.
        """
        from coordinator import Retry

        if len(messages) == 1:
            self.judge(messages[0], runs[0], reads)
        elif any(_is_odd(message) for message in messages):
            for run in runs:
                self.recorder.say("fail", run=run, delay_s=RETRY_S)
            raise Retry(RETRY_S)

    @contextlib.contextmanager
    def told_if_broken(self, runs: list[int]) -> Iterator[None]:
        """Say it when something else than what the message asked for ends a handler: its connection, or its cancellation."""
        from coordinator import Reject, Retry

        try:
            yield
        except (Reject, Retry):
            raise
        except BaseException as error:
            self.broken(runs, error)
            raise

    def broken(self, runs: list[int], error: BaseException) -> None:
        for run in runs:
            self.recorder.say("broken", run=run, error=type(error).__name__)

    def told(self, runs: list[int], error: BaseException | None, *, together: bool = False) -> None:
        """Say what came of acks. Refused is known; of the rest only the COMMIT's answer is.

        Args:
            together: In one transaction. Of other acks some may have been written where one was refused.
        """
        from coordinator.errors import FencedError

        outcome = "returned" if error is None else "unknown"
        if isinstance(error, FencedError) and (together or len(runs) == 1):
            outcome = "raised"
        self.recorder.say("told", runs=runs, outcome=outcome, error=error and type(error).__name__)

    def effects(self, reads: Reads, messages: list[Any]) -> list[tuple[Any, ...]]:
        return [(reads.group, one.topic, one.partition, one.offset, one.value["id"]) for one in messages]

    def options(self, reads: Reads) -> dict[str, Any]:
        options: dict[str, Any] = {
            "ordering": reads.ordering,
            "max_attempts": reads.max_attempts,
            "max_crashes": reads.max_crashes,
            "retry": [RETRY_S],
        }
        if not reads.explicit:
            options |= {
                "concurrency": reads.concurrency,
                "batch_size": reads.batch_size,
                "transactional": reads.transactional,
            }
        return options


def _is_odd(message: Any) -> bool:
    """Whether judge would raise."""
    do = message.value.get("do")
    return do in ("fail", "reject") or (do == "fail once" and message.attempt == 1)


def _give_back(messages: list[Any], delay_s: float | None) -> None:
    """Nack what is still ours."""
    from coordinator.errors import CoordinatorError

    for message in messages:
        with contextlib.suppress(CoordinatorError):
            message.nack(delay_s=delay_s)


class Threads:
    """All groups of a process in threads."""

    def __init__(self, task: Task) -> None:
        from coordinator import Coordinator, Settings

        self.acts = Acts(task)
        self.task = task
        self.app = Coordinator(task.dsn, client_id=task.name, settings=Settings(**task.settings))
        self.consumers: list[Any] = []

    def run(self) -> int:
        from coordinator.errors import CoordinatorError

        ours = [reads for reads in self.task.reads if not reads.explicit]
        loops = []
        for reads in self.task.reads:
            if reads.explicit:
                consumer = _patient(
                    lambda reads=reads: self.app.consumer(
                        *reads.topics, group=reads.group, **self.acts.options(reads)
                    ).start()
                )
                self.consumers.append(consumer)
                loops.append(threading.Thread(target=_or_die, args=(self._loop, reads, consumer)))
            else:
                self.app.subscribe(*reads.topics, group=reads.group, **self.acts.options(reads))(self._handler(reads))
        for loop in loops:
            loop.start()
        if ours:
            code = _patient(self.app.run)
        else:
            stop = threading.Event()
            signal.signal(signal.SIGTERM, lambda *_: stop.set())
            while not stop.wait(0.5):
                pass
            code = 0
        for consumer in self.consumers:
            # It was told that the server is away, and what it had comes again.
            with contextlib.suppress(CoordinatorError):
                consumer.close()
        for loop in loops:
            loop.join(30)
        self.app.close()
        self.acts.recorder.say("ended", code=code)
        return code

    def _handler(self, reads: Reads) -> Any:
        acts = self.acts

        def one(message: Any) -> None:
            run = acts.recorder.start(message)
            with acts.told_if_broken([run]):
                self._work(message, run, reads)
            acts.recorder.say("ack", run=run)

        def many(messages: list[Any]) -> Any:
            batch = acts.recorder.next_batch()
            runs = [acts.recorder.start(message, batch) for message in messages]
            results: dict[Any, BaseException | None] = {}
            for message, run in zip(messages, runs, strict=True):
                try:
                    with acts.told_if_broken(runs):
                        self._work(message, run, reads)
                    results[message] = None
                except Exception as error:
                    results[message] = error
            for message, run in zip(messages, runs, strict=True):
                if results[message] is None:
                    acts.recorder.say("ack", run=run)
            return results

        def one_booked(message: Any, connection: Any) -> None:
            booked([message], connection)

        def booked(messages: list[Any], connection: Any) -> None:
            batch = acts.recorder.next_batch()
            runs = [acts.recorder.start(message, batch) for message in messages]
            with acts.told_if_broken(runs):
                self._effect(messages, runs, reads, connection)
            for run in runs:
                acts.recorder.say("ack", run=run)

        if reads.transactional:
            return booked if reads.batch_size > 1 else one_booked
        return many if reads.batch_size > 1 else one

    def _effect(self, messages: list[Any], runs: list[int], reads: Reads, connection: Any) -> None:
        with connection.cursor() as cursor:
            cursor.executemany(EFFECT, self.acts.effects(reads, messages))
        if self.task.work_s:
            time.sleep(self.task.work_s * len(messages))
        self.acts.judge_together(messages, runs, reads)

    def _work(self, message: Any, run: int, reads: Reads) -> None:
        if self.task.work_s:
            time.sleep(self.task.work_s)
        self.acts.judge(message, run, reads)

    # ---- explicit consumers

    def _loop(self, reads: Reads, consumer: Any) -> None:
        for batch in consumer.batches(reads.ask, 1.0):
            if reads.transactional:
                for place in range(0, len(batch), reads.batch_size):
                    self._book(reads, consumer, batch[place : place + reads.batch_size])
            elif batch:
                self._settle(reads, consumer, batch)

    def _book(self, reads: Reads, consumer: Any, batch: list[Any]) -> None:
        from coordinator import Reject, Retry
        from coordinator.errors import CoordinatorError

        number = self.acts.recorder.next_batch()
        runs = [self.acts.recorder.start(message, number) for message in batch]
        try:
            with consumer.transaction(batch) as connection:
                self._effect(batch, runs, reads, connection)
                for run in runs:
                    self.acts.recorder.say("ack", run=run)
        except Retry as error:
            _give_back(batch, error.delay_s)
        except Reject as error:
            with contextlib.suppress(CoordinatorError):
                batch[0].reject(str(error))
        except CoordinatorError as error:
            self.acts.told(runs, error, together=True)
            _give_back(batch, 0)
        except Exception as error:
            # The connection broke in the handler's own statement.
            self.acts.broken(runs, error)
            _give_back(batch, 0)
        else:
            self.acts.told(runs, None)

    def _settle(self, reads: Reads, consumer: Any, batch: list[Any]) -> None:
        from coordinator import Reject, Retry
        from coordinator.errors import CoordinatorError, FencedError

        number = self.acts.recorder.next_batch()
        runs = [self.acts.recorder.start(message, number) for message in batch]
        acked = []
        for message, run in zip(batch, runs, strict=True):
            try:
                self._work(message, run, reads)
                self.acts.recorder.say("ack", run=run)
                message.ack()
                acked.append(run)
            except Retry as error:
                with contextlib.suppress(FencedError):
                    message.nack(delay_s=error.delay_s)
            except Reject as error:
                with contextlib.suppress(FencedError):
                    message.reject(str(error))
            except FencedError as error:
                self.acts.told([run], error)
        self.acts.recorder.say("commit", runs=acked)
        try:
            consumer.commit()
        except CoordinatorError as error:
            self.acts.told(acked, error)
        else:
            self.acts.told(acked, None)


class Asyncio:
    """All groups of a process on one loop."""

    def __init__(self, task: Task) -> None:
        self.acts = Acts(task)
        self.task = task

    def run(self) -> int:
        return asyncio.run(self._run())

    async def _run(self) -> int:
        from coordinator import AsyncCoordinator, Settings
        from coordinator.errors import CoordinatorError

        async with AsyncCoordinator(
            self.task.dsn, client_id=self.task.name, settings=Settings(**self.task.settings)
        ) as app:
            ours = [reads for reads in self.task.reads if not reads.explicit]
            loops, consumers = [], []
            for reads in self.task.reads:
                if reads.explicit:
                    consumer = app.consumer(*reads.topics, group=reads.group, **self.acts.options(reads))
                    await _apatient(consumer.start)
                    consumers.append(consumer)
                    loops.append(asyncio.create_task(self._loop(reads, consumer)))
                else:
                    app.subscribe(*reads.topics, group=reads.group, **self.acts.options(reads))(self._handler(reads))
            if ours:
                code = await _apatient(app.run)
            else:
                stop = asyncio.Event()
                asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
                waiting = asyncio.create_task(stop.wait())
                done, _ = await asyncio.wait([waiting, *loops], return_when=asyncio.FIRST_COMPLETED)
                if waiting not in done:
                    done.pop().result()
                code = 0
            for consumer in consumers:
                with contextlib.suppress(CoordinatorError):
                    await consumer.close()
            if loops:
                await asyncio.wait(loops, timeout=30)
        self.acts.recorder.say("ended", code=code)
        return code

    def _handler(self, reads: Reads) -> Any:
        acts = self.acts

        async def one(message: Any) -> None:
            run = acts.recorder.start(message)
            with acts.told_if_broken([run]):
                await self._work(message, run, reads)
            acts.recorder.say("ack", run=run)

        async def many(messages: list[Any]) -> Any:
            batch = acts.recorder.next_batch()
            runs = [acts.recorder.start(message, batch) for message in messages]
            results: dict[Any, BaseException | None] = {}
            for message, run in zip(messages, runs, strict=True):
                try:
                    with acts.told_if_broken(runs):
                        await self._work(message, run, reads)
                    results[message] = None
                except Exception as error:
                    results[message] = error
            for message, run in zip(messages, runs, strict=True):
                if results[message] is None:
                    acts.recorder.say("ack", run=run)
            return results

        async def one_booked(message: Any, connection: Any) -> None:
            await booked([message], connection)

        async def booked(messages: list[Any], connection: Any) -> None:
            batch = acts.recorder.next_batch()
            runs = [acts.recorder.start(message, batch) for message in messages]
            with acts.told_if_broken(runs):
                await self._effect(messages, runs, reads, connection)
            for run in runs:
                acts.recorder.say("ack", run=run)

        if reads.transactional:
            return booked if reads.batch_size > 1 else one_booked
        return many if reads.batch_size > 1 else one

    async def _effect(self, messages: list[Any], runs: list[int], reads: Reads, connection: Any) -> None:
        async with connection.cursor() as cursor:
            await cursor.executemany(EFFECT, self.acts.effects(reads, messages))
        if self.task.work_s:
            await asyncio.sleep(self.task.work_s * len(messages))
        self.acts.judge_together(messages, runs, reads)

    async def _work(self, message: Any, run: int, reads: Reads) -> None:
        if self.task.work_s:
            await asyncio.sleep(self.task.work_s)
        self.acts.judge(message, run, reads)

    # ---- explicit consumers

    async def _loop(self, reads: Reads, consumer: Any) -> None:
        async for batch in consumer.batches(reads.ask, 1.0):
            if reads.transactional:
                for place in range(0, len(batch), reads.batch_size):
                    await self._book(reads, consumer, batch[place : place + reads.batch_size])
            elif batch:
                await self._settle(reads, consumer, batch)

    async def _book(self, reads: Reads, consumer: Any, batch: list[Any]) -> None:
        from coordinator import Reject, Retry
        from coordinator.errors import CoordinatorError

        number = self.acts.recorder.next_batch()
        runs = [self.acts.recorder.start(message, number) for message in batch]
        try:
            async with consumer.transaction(batch) as connection:
                await self._effect(batch, runs, reads, connection)
                for run in runs:
                    self.acts.recorder.say("ack", run=run)
        except Retry as error:
            _give_back(batch, error.delay_s)
        except Reject as error:
            with contextlib.suppress(CoordinatorError):
                batch[0].reject(str(error))
        except CoordinatorError as error:
            self.acts.told(runs, error, together=True)
            _give_back(batch, 0)
        except Exception as error:
            # The connection broke in the handler's own statement.
            self.acts.broken(runs, error)
            _give_back(batch, 0)
        else:
            self.acts.told(runs, None)

    async def _settle(self, reads: Reads, consumer: Any, batch: list[Any]) -> None:
        from coordinator import Reject, Retry
        from coordinator.errors import CoordinatorError, FencedError

        number = self.acts.recorder.next_batch()
        runs = [self.acts.recorder.start(message, number) for message in batch]
        acked = []
        for message, run in zip(batch, runs, strict=True):
            try:
                await self._work(message, run, reads)
                self.acts.recorder.say("ack", run=run)
                message.ack()
                acked.append(run)
            except Retry as error:
                with contextlib.suppress(FencedError):
                    message.nack(delay_s=error.delay_s)
            except Reject as error:
                with contextlib.suppress(FencedError):
                    message.reject(str(error))
            except FencedError as error:
                self.acts.told([run], error)
        self.acts.recorder.say("commit", runs=acked)
        try:
            await consumer.commit()
        except CoordinatorError as error:
            self.acts.told(acked, error)
        else:
            self.acts.told(acked, None)


def _or_die(loop: Any, *arguments: Any) -> None:
    """Run a loop in a thread; what ends it by an exception ends the process, loudly."""
    try:
        loop(*arguments)
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(70)


def _patient(start: Any) -> Any:
    """Start again while there is no server: what a supervisor of the process would do."""
    from coordinator.errors import UnavailableError

    while True:
        try:
            return start()
        except UnavailableError as error:
            print("no server yet:", error, file=sys.stderr)
            time.sleep(0.2)


async def _apatient(start: Any) -> Any:
    from coordinator.errors import UnavailableError

    while True:
        try:
            return await start()
        except UnavailableError as error:
            print("no server yet:", error, file=sys.stderr)
            await asyncio.sleep(0.2)


def measure_exchanges(recorder: Any, period_s: float = 5.0) -> None:
    """Write down how long exchanges take, every few seconds: counts per tenth of a millisecond."""
    from coordinator.db import exchange as wire

    lock, taken_s = threading.Lock(), []
    plain, aplain = wire.run, wire.arun

    def timed(*arguments: Any) -> Any:
        began_s = time.perf_counter()
        answer = plain(*arguments)
        with lock:
            taken_s.append(time.perf_counter() - began_s)
        return answer

    async def atimed(*arguments: Any) -> Any:
        began_s = time.perf_counter()
        answer = await aplain(*arguments)
        with lock:
            taken_s.append(time.perf_counter() - began_s)
        return answer

    def tell() -> None:
        while True:
            time.sleep(period_s)
            with lock:
                found = sorted(taken_s)
                taken_s.clear()
            recorder.say("exchanges", tenths_ms=[round(took_s * 10_000) for took_s in found])

    wire.run, wire.arun = timed, atimed
    threading.Thread(target=tell, daemon=True).start()


if __name__ == "__main__":
    # Its own folder would hide modules of the standard library, and names of the package.
    here = Path(__file__).resolve()
    sys.path[:] = [str(here.parents[3]), str(here.parents[2])] + [
        place for place in sys.path if Path(place or ".").resolve() != here.parent
    ]
    task = Task.of(sys.argv[1])
    made = (Threads if task.kind == "threads" else Asyncio)(task)
    measure_exchanges(made.acts.recorder)
    sys.exit(made.run())
