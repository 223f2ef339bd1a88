"""SIGTERM and SIGINT, collected while something runs, instead of ending the process."""

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def collected_signals(*, wanted: bool) -> Iterator[list[int]]:
    """Collect them while the body runs; they reach the main thread only. Not `wanted`: the list stays empty.

    The handler appends to a list and takes no lock: an Event could be held by the very code that it interrupts.
    """
    received: list[int] = []
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield received
        return

    def on_signal(number: int, _frame: FrameType | None) -> None:
        received.append(number)

    before = {number: signal.signal(number, on_signal) for number in _SIGNALS}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def loop_signals(*, wanted: bool) -> Iterator[list[int]]:
    """`collected_signals` for asyncio: the loop collects them, which wakes it."""
    received: list[int] = []
    if not wanted:
        yield received
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    # Refused outside of the main thread, where signals never arrive, and on Windows, where the loop has no handlers.
    with suppress(NotImplementedError, RuntimeError, ValueError):
        for number in _SIGNALS:
            loop.add_signal_handler(number, received.append, number)
    try:
        yield received
    finally:
        for number, handler in before.items():
            # asyncio.run has one of its own for SIGINT; None: it was not installed from Python.
            if loop.remove_signal_handler(number) and handler is not None:
                signal.signal(number, handler)
