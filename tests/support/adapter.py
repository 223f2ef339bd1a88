"""One face for the consumer shells, so that a test of delivery runs on each: subscribe, start in the background, stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self

from support.aio_adapter import Asyncio
from support.shell import GROUP, TOPIC, short

from coordinator import Coordinator
from coordinator.consumer.blocking import Workers
from coordinator.consumer.handlers import Registration
from coordinator.consumer.options import Options
from coordinator.consumer.runtime import Runtime

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from coordinator.consumer.status import Status
    from coordinator.core.loop import Engine
    from coordinator.observe.health import Finding


class Shell(Protocol):
    """What a test of delivery asks of a shell.

    Attributes:
        kind: "threads" or "asyncio", as Task.shell has it.
        app: Publishes and administers; always the blocking face.
        engine: Of the coordinator that runs, for bounds on what it holds.
    """

    kind: str
    app: Coordinator

    @property
    def engine(self) -> Engine: ...

    @property
    def failure(self) -> BaseException | None: ...

    def status(self) -> Status: ...

    def findings(self) -> list[Finding]: ...

    def subscribe(self, handler: Callable[..., Any], *topics: str, group: str = GROUP, **options: Any) -> None: ...

    def publish_on(self, connection: Any, topic: str, value: object, key: str | None = None) -> None: ...

    def start(self) -> Self: ...

    def stop(self) -> bool: ...


class Threads:
    """The shell in threads, as `Coordinator.run` wires it, without the wait for signals."""

    kind = "threads"

    def __init__(self, dsn: str, client_id: str = "test", **settings: Any) -> None:
        self.app = Coordinator(dsn, client_id=client_id, settings=short(**settings))
        self._registrations: list[Registration] = []
        self._runtime: Runtime | None = None
        self._workers: Workers | None = None

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
        """Register a handler, which gets what @subscribe gives it."""
        self._registrations.append(Registration(handler, Options(topics or (TOPIC,), group, **options)))

    def publish_on(self, connection: Any, topic: str, value: object, key: str | None = None) -> None:
        """Publish in the transaction of a handler's connection."""
        self.app.publish(topic, value, key=key, connection=connection)

    def start(self) -> Self:
        """Join and run the handlers; `stop` ends it."""
        app = self.app
        self._runtime = Runtime(app.dsn, app.schema, app.settings, app.client_id)
        self._workers = Workers(self._runtime, self._registrations, app.codec.decode)
        self._workers.start()
        return self

    def stop(self) -> bool:
        """Drain, release, leave; False if a handler was left behind. Raises what ended a background loop."""
        workers, self._workers = self._workers, None
        if workers is None:
            return True
        clean = workers.stop()
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


SHELLS: dict[str, Callable[..., Any]] = {"threads": Threads, "asyncio": Asyncio}
