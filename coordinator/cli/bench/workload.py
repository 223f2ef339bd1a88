"""What both sides send: the same keys and the same bytes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from coordinator import Outgoing

T = TypeVar("T")

_DIGITS = 12
_KEY_COUNT = 1000


@dataclass(frozen=True, slots=True)
class Workload:
    """Messages with their number at the front of the payload; `payload_bytes` is at least the length of a number."""

    count: int
    payload_bytes: int

    def payload(self, number: int) -> bytes:
        return (b"%0*d" % (_DIGITS, number)).ljust(self.payload_bytes, b".")

    def key(self, number: int) -> str:
        return f"key-{number % _KEY_COUNT}"

    def outgoing(self) -> list[Outgoing]:
        """Built before the clock runs: a user has the values too."""
        return [Outgoing(self.payload(number), key=self.key(number)) for number in range(self.count)]


def number_of(payload: bytes) -> int:
    return int(payload[:_DIGITS])


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))
