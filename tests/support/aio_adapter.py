"""The asyncio shell behind the face of `adapter.Shell`: its loop runs in a thread, and tests stay as they are."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Self

from support.shell import GROUP, TOPIC, short

from coordinator import AsyncCoordinator, Coordinator
from coordinator.consumer.aio import AsyncWorkers, is_async
from coordinator.consumer.aio_runtime import AsyncRuntime
from coordinator.consumer.handlers import Registration
from coordinator.consumer.options import Options

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import TracebackType

    import psycopg

    from coordinator.consumer.status import Status
    from coordinator.core.loop import Engine
    from coordinator.observe.health import Finding

_LIMIT_S = 60.0


class Asyncio:
    """The shell in asyncio, as `AsyncCoordinator.run` wires it. Handlers that are no coroutine functions run in threads."""

    kind = "asyncio"

    def __init__(self, dsn: str, client_id: str = "test", **settings: Any) -> None:
        self.app = Coordinator(dsn, client_id=client_id, settings=short(**settings))
        self._registrations: list[Registration] = []
        self._runtime: AsyncRuntime | None = None
        self._workers: AsyncWorkers | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def engine(self) -> Engine:
        assert self._runtime is not None
        return self._runtime.engine

    @property
    def failure(self) -> BaseException | None:
        """What has ended a background loop, or left nothing to do."""
        return None if self._runtime is None else self._runtime.failure or self._runtime.deleted

    def status(self) -> Status:
        """What it is doing right now."""
        assert self._runtime is not None
        return self._runtime.status()

    def findings(self) -> list[Finding]:
        """What is wrong with it."""
        assert self._runtime is not None
        return self._runtime.findings()

    def subscribe(self, handler: Callable[..., Any], *topics: str, group: str = GROUP, **options: Any) -> None:
        """Register a handler; one that wants a connection gets one that it can use from its thread."""
        if options.get("transactional") and not is_async(handler):
            handler = _bridged(handler)
        self._registrations.append(Registration(handler, Options(topics or (TOPIC,), group, **options)))

    def publish_on(self, connection: BlockingConnection, topic: str, value: object, key: str | None = None) -> None:
        """Publish in the transaction of a handler's connection."""
        publishing = AsyncCoordinator(self.app.dsn)
        self._in_loop(publishing.publish(topic, value, key=key, connection=connection.asynchronous))

    def start(self) -> Self:
        """Join and run the handlers; `stop` ends it."""
        app = self.app
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="asyncio-shell", daemon=True)
        self._thread.start()
        self._runtime = AsyncRuntime(app.dsn, app.schema, app.settings, app.client_id)
        self._workers = AsyncWorkers(self._runtime, self._registrations, app.codec.decode)
        try:
            self._in_loop(self._started(self._workers))
        except BaseException:
            self._workers = None
            self._end_loop()
            raise
        return self

    def stop(self) -> bool:
        """Drain, release, leave; False if a handler was cancelled. Raises what ended a background loop."""
        workers, self._workers = self._workers, None
        if workers is None:
            return True
        try:
            clean: bool = self._in_loop(workers.stop())
        finally:
            self._end_loop()
        assert self._runtime is not None
        self._runtime.check()
        return clean

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop if it runs, and close the pool."""
        try:
            self.stop()
        finally:
            self.app.close()

    async def _started(self, workers: AsyncWorkers) -> None:
        await workers.start()

    def _in_loop(self, work: Coroutine[Any, Any, Any]) -> Any:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_LIMIT_S)

    def _end_loop(self) -> None:
        assert self._loop is not None
        assert self._thread is not None
        self._in_loop(_end_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_LIMIT_S)
        self._loop.close()


class BlockingConnection:
    """An AsyncConnection for a thread: its loop is another thread's."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], loop: asyncio.AbstractEventLoop) -> None:
        self._connection = connection
        self._loop = loop

    @property
    def asynchronous(self) -> psycopg.AsyncConnection[Any]:
        """The connection itself, for code that runs in the loop."""
        return self._connection

    def execute(self, text: Any, parameters: Any = None) -> BlockingCursor:
        cursor = asyncio.run_coroutine_threadsafe(self._connection.execute(text, parameters), self._loop).result()
        return BlockingCursor(cursor, self._loop)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


class BlockingCursor:
    def __init__(self, cursor: psycopg.AsyncCursor[Any], loop: asyncio.AbstractEventLoop) -> None:
        self._cursor = cursor
        self._loop = loop

    def fetchone(self) -> Any:
        return asyncio.run_coroutine_threadsafe(self._cursor.fetchone(), self._loop).result()

    def fetchall(self) -> Any:
        return asyncio.run_coroutine_threadsafe(self._cursor.fetchall(), self._loop).result()


def _bridged(handler: Callable[..., Any]) -> Callable[..., Any]:
    async def bridged(argument: Any, connection: psycopg.AsyncConnection[Any]) -> Any:
        blocking = BlockingConnection(connection, asyncio.get_running_loop())
        return await asyncio.to_thread(handler, argument, blocking)

    return bridged


async def _end_tasks() -> None:
    """As asyncio.run at its end."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=5)
