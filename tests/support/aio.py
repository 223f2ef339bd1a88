"""What the tests of the asyncio shell share: a loop per test, waiting with a limit, and the loop's own complaints."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from typing import TYPE_CHECKING, Any, Self

from support.shell import GROUP, TOPIC, short

from coordinator import AsyncCoordinator, Outgoing
from coordinator.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from coordinator import AsyncConsumer, Message

LIMIT_S = 60.0


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in a loop of its own; it fails when the loop has something to complain about, as an unawaited exception."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        complaints: list[dict[str, Any]] = []

        async def limited() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
            async with asyncio.timeout(LIMIT_S):
                await test(**fixtures)

        asyncio.run(limited())
        assert not complaints

    return run


async def until(condition: Callable[[], Any], limit_s: float = 10.0, what: str = "") -> Any:
    """Return the first true answer; fail after the limit."""
    deadline_s = time.monotonic() + limit_s
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not within {limit_s:g} s: {what or condition}")
        await asyncio.sleep(0.01)


def coordinator(dsn: str, **changes: Any) -> AsyncCoordinator:
    return AsyncCoordinator(dsn, client_id="test", settings=short(**changes))


async def publish(app: AsyncCoordinator, count: int, *, start: int = 0, partition: int | None = None) -> list[int]:
    """Publish numbers, spread over the partitions by their keys unless one is named; returns them."""
    numbers = list(range(start, start + count))
    await app.publish_many(TOPIC, [Outgoing(number, str(number), partition=partition) for number in numbers])
    return numbers


async def drain(consumer: AsyncConsumer, count: int, limit_s: float = 15.0) -> list[Message]:
    """Take and ack until `count` messages came, or the limit is over."""
    found: list[Message] = []
    deadline_s = time.monotonic() + limit_s
    while len(found) < count and time.monotonic() < deadline_s:
        for message in await consumer.poll(min(100, count - len(found)), 0.2):
            found.append(message)
            message.ack()
    return found


class Running:
    """`app.run()` beside the test; stopped at the end, and must end then."""

    def __init__(self, app: AsyncCoordinator) -> None:
        self._app = app
        self.task = asyncio.create_task(app.run(install_signal_handlers=False))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._app.stop()
        async with asyncio.timeout(20):
            await asyncio.wait([self.task])

    @property
    def code(self) -> int:
        return self.task.result()


async def until_read(app: AsyncCoordinator, group: str = GROUP, limit_s: float = 15.0) -> None:
    """Wait until the group, which may be about to be made, has settled everything."""
    deadline_s = time.monotonic() + limit_s
    while True:
        # Not of a list without any: its group was not joined yet.
        with contextlib.suppress(NotFoundError):
            places = await app.group_offsets(group)
            if places and not any(place.lag for place in places):
                return
        assert time.monotonic() < deadline_s, f"lag is left after {limit_s:g} s"
        await asyncio.sleep(0.02)
