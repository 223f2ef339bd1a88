"""How a taker that computes lets the work loop have the interpreter, before the interpreter itself would."""

import contextlib
import select
from collections.abc import Iterator
from typing import Any

import psycopg

# How long a taker stands back: as long as it takes to wake a thread that waits, and to take in what a socket holds.
YIELD_S = 0.0001


class Interpreter:
    """Tells takers that an answer of the server's is there, which the work loop can't read while they compute.

    CPython takes the interpreter from a thread that computes only after sys.getswitchinterval(), 5 ms. The answer of an exchange
    comes in several pieces, as a socket holds no more, and the server stands still until a piece is read: for each of them the
    work loop would wait so long, where the whole exchange takes the server no more than that.
    """

    def __init__(self) -> None:
        self._answer: select.poll | None = None

    @contextlib.contextmanager
    def awaiting(self, connection: psycopg.Connection[Any]) -> Iterator[None]:
        """The body waits for an answer on this connection."""
        answer = select.poll()
        answer.register(connection.fileno(), select.POLLIN)
        self._answer = answer
        try:
            yield
        finally:
            self._answer = None

    def wanted(self) -> bool:
        """Tell whether there is something to read; for one thread at a time."""
        answer = self._answer
        return answer is not None and bool(answer.poll(0))
