"""How far a partition is read ahead: about two seconds of its handlers' work, up to a bound."""

_MIN = 4
_START = 64
_FULL_S = 2.0
_EMPTY_S = 1.0


class Window:
    """The size of one partition's window, in messages; adapts so that a slow consumer does not hoard.

    Doubled when what was read for one window was started within a second, halved when the oldest of it has waited for two.
    """

    __slots__ = ("_max", "_since_s", "_started", "size")

    def __init__(self, max_size: int) -> None:
        self._max = max_size
        self.size = min(_START, max_size)
        self._since_s: float | None = None
        self._started = 0

    def on_started(self, count: int, now_s: float) -> None:
        """Count messages that were handed over."""
        if self._since_s is None:
            self._since_s = now_s
            self._started = 0
        self._started += count
        elapsed_s = now_s - self._since_s
        if self._started >= self.size:
            if elapsed_s <= _EMPTY_S:
                self.size = min(2 * self.size, self._max)
            elif elapsed_s > _FULL_S:
                self.size = max(self.size // 2, min(_MIN, self._max))
            self._since_s = now_s
            self._started = 0
        elif elapsed_s > _FULL_S:
            self.size = max(self.size // 2, min(_MIN, self._max))
            self._since_s = now_s
            self._started = 0

    def on_idle(self) -> None:
        """Nothing was there to start: time that passes now says nothing about the handlers."""
        self._since_s = None
