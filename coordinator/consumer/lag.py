"""Noticing that an event loop was blocked: by a handler that computes, or that waits without await."""

import asyncio
import time
from collections.abc import Callable


class Lag:
    """Notices afterwards that the event loop was blocked, and for how long."""

    def __init__(self, limit_s: float, tell: Callable[[float], None]) -> None:
        self._limit_s = limit_s
        self._tell = tell
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0

    def start(self) -> None:
        pause_s = self._limit_s / 2
        self._due_s = time.monotonic() + pause_s
        self._timer = asyncio.get_running_loop().call_later(pause_s, self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        late_s = time.monotonic() - self._due_s
        if late_s >= self._limit_s:
            self._tell(late_s)
        self.start()
