"""How the tasks of one event loop wake each other: asyncio's Event and Condition, with a limit that costs no task."""

import asyncio
import contextlib
from collections import deque


class Bell:
    """Wakes who waits. Nothing is remembered: who comes after the ring waits for the next."""

    def __init__(self) -> None:
        self._waiters: deque[asyncio.Future[None]] = deque()

    @property
    def awaited(self) -> bool:
        """Whether anybody waits."""
        return bool(self._waiters)

    def ring(self, count: int | None = None) -> None:
        """Wake `count` of the waiting tasks, or all."""
        while self._waiters and count != 0:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count = None if count is None else count - 1

    async def wait(self, limit_s: float | None = None) -> None:
        """Return at the next ring, or after the limit."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.append(waiter)
        timer = None if limit_s is None else loop.call_later(max(limit_s, 0.0), _end, waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                # It was rung for a task that is gone now: the next one must not miss what there is.
                self.ring(1)
            raise
        finally:
            if timer is not None:
                timer.cancel()
            with contextlib.suppress(ValueError):
                self._waiters.remove(waiter)


class Latch(Bell):
    """A bell that stays rung until it is cleared."""

    def __init__(self) -> None:
        super().__init__()
        self.is_set = False

    def set(self) -> None:
        self.is_set = True
        self.ring()

    def clear(self) -> None:
        self.is_set = False

    async def wait(self, limit_s: float | None = None) -> None:
        """Return once it is set, or after the limit."""
        if not self.is_set:
            await super().wait(limit_s)


def _end(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
