"""Finishing what must not be cut in half by a cancellation: a COMMIT, a ROLLBACK, the way of a connection back to its pool."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def uninterrupted(work: Coroutine[Any, Any, T], hurry: Callable[[], object] = lambda: None) -> T:
    """Run to the end, also where the caller is cancelled meanwhile; it is told so afterwards. A second one cancels the work, too.

    Without this, a task that is cancelled twice (a timeout in a task group that fails) leaves a connection in a transaction,
    or with nobody: psycopg's own cleaning up awaits, and is cut off by the second.

    Args:
        hurry: Called at the first cancellation, to tell the work that somebody waits.
    """
    task = asyncio.ensure_future(work)
    try:
        # Unlike await, wait leaves the task alone when the waiting is cancelled.
        await asyncio.wait([task])
    except asyncio.CancelledError:
        hurry()
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()
            # What it cleans up is cleaned up before the caller goes on.
            await asyncio.wait([task])
        raise
    finally:
        if task.done() and not task.cancelled():
            # Looked at, so that nobody is told later that it was not; a cancellation is what the caller asked for.
            task.exception()
    return task.result()
