"""Messages that a taker is handed before it needs them: a quick one then asks the engine once for many."""

from collections import deque
from collections.abc import Sequence

from coordinator.model import Message

# What is handed over ahead is taken back when it was not started after so long: its taker is at something slow.
STALL_S = 0.05
_MOST = 32
# Who needs more than this for a message does not gain by it.
_QUICK_S = 0.0001


class Ahead:
    """One taker's own messages: in flight for the engine, but started only when the taker pops them, which needs no lock.

    What was not started goes back at any moment, uncharged: when claims are revoked or paused, when another taker finds
    nothing to do, when a message is to run alone, and after STALL_S. Each message is popped by one side only, as popping
    from a deque is one step of the interpreter.
    """

    __slots__ = ("_most", "_size", "filled_s", "messages")

    def __init__(self, most: int = _MOST) -> None:
        """`most`: how many messages may be taken at once, the first of them included."""
        self.messages: deque[Message] = deque()
        self.filled_s = float("-inf")
        self._most = most
        self._size = 1

    def next_count(self, now_s: float) -> int:
        """How many messages to take now: twice as many as before where those were done quickly, else half."""
        if now_s - self.filled_s <= self._size * _QUICK_S:
            self._size = min(2 * self._size, self._most)
        else:
            self._size = max(self._size // 2, 1)
        return self._size

    def fill(self, messages: Sequence[Message], now_s: float) -> None:
        """Take these in; they were taken now."""
        self.filled_s = now_s
        self.messages.extend(messages)

    def start(self) -> Message | None:
        """Pop the next message whose claim is still held; called by the taker, without a lock."""
        messages = self.messages
        while messages:
            try:
                message = messages.popleft()
            except IndexError:
                # Taken back between the two lines above.
                return None
            if not message.owner.lost:
                return message
        return None

    def take_back(self) -> list[Message]:
        """Pop everything that was not started, the last one first; called by the engine."""
        unstarted: list[Message] = []
        while self.messages:
            try:
                unstarted.append(self.messages.pop())
            except IndexError:
                break
        if unstarted:
            self._size = 1
        return unstarted
