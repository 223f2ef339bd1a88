"""How far a partition is read ahead: about two seconds of its handlers' work, up to a bound."""

_MIN = 4
_START = 64
_FULL_S = 2.0
_EMPTY_S = 1.0
_LOOK_AHEAD = 4
_MISSING = 20


class Window:
    """The size of one partition's window, in messages; adapts so that a slow consumer does not hoard.

    Doubled when what was read for one window was started within a second, halved when the oldest of it has waited for two;
    and never more than the bytes that a partition may hold.
    """

    __slots__ = ("_average_bytes", "_max", "_max_bytes", "_since_s", "_size", "_started", "_started_before")

    def __init__(self, max_size: int, max_bytes: int = 8 * 1024 * 1024) -> None:
        self._max = max_size
        self._max_bytes = max_bytes
        self._size = min(_START, max_size)
        self._average_bytes = 0.0
        self._since_s: float | None = None
        self._started = 0
        self._started_before = 0

    @property
    def size(self) -> int:
        """In messages, at least 1."""
        if self._average_bytes * self._size <= self._max_bytes:
            return self._size
        return max(int(self._max_bytes / self._average_bytes), 1)

    def widen(self, max_size: int) -> None:
        """Another bound from now on; grown into as the handlers' speed allows."""
        self._max = max_size

    @property
    def max_size(self) -> int:
        return self._max

    @property
    def max_waiting(self) -> int:
        """How many messages may wait behind keys, beside the window."""
        return _LOOK_AHEAD * self._max

    @property
    def max_missing(self) -> int:
        """How many missing offsets are read past, by a subscription that does not wait for them.

        All of them may be there at once when a large transaction commits, beside what the window holds.
        """
        messages = _MISSING * self._max
        if self._average_bytes * messages <= _LOOK_AHEAD * self._max_bytes:
            return messages
        return max(int(_LOOK_AHEAD * self._max_bytes / self._average_bytes), self.size)

    def on_read(self, count: int, size_bytes: int) -> None:
        """Count what was read."""
        average = size_bytes / count
        self._average_bytes = average if not self._average_bytes else 0.8 * self._average_bytes + 0.2 * average

    def on_started(self, count: int, now_s: float) -> None:
        """Count messages that were handed over."""
        if self._since_s is None:
            self._since_s = now_s
            self._fold()
        self._started += count
        elapsed_s = now_s - self._since_s
        if self._started < self._size and elapsed_s <= _FULL_S:
            return
        if elapsed_s <= _EMPTY_S:
            self._size = min(2 * self._size, self._max)
        elif elapsed_s > _FULL_S:
            self._size = max(self._size // 2, min(_MIN, self._max))
        self._since_s = now_s
        self._fold()

    def on_not_started(self, count: int) -> None:
        """Messages that were handed over ahead came back."""
        self._started -= count

    @property
    def started_count(self) -> int:
        """All messages that were handed over."""
        return self._started_before + self._started

    def _fold(self) -> None:
        self._started_before += self._started
        self._started = 0

    def on_idle(self) -> None:
        """Nothing was there to start: time that passes now says nothing about the handlers."""
        self._since_s = None
