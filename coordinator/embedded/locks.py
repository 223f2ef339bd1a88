"""Locks on files. The kernel drops them when the process is gone, however it went."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from coordinator.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_POLL_INTERVAL_S = 0.02


class FileLock:
    """A lock that is held until `release` or the end of the process; children made by fork share it."""

    def __init__(self, path: Path, *, shared: bool = False) -> None:
        self._path = path
        self._kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        self._descriptor: int | None = None

    def try_acquire(self) -> bool:
        """Take the lock if that is possible at once."""
        assert self._descriptor is None, "a lock is taken once"
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, self._kind | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def acquire(self, timeout_s: float) -> None:
        """Wait for the lock.

        Raises:
            UnavailableError: If it is still held elsewhere after `timeout_s`.
        """
        deadline_s = time.monotonic() + timeout_s
        while not self.try_acquire():
            # Polled: a blocking flock cannot be limited without a signal, and those belong to the application.
            if time.monotonic() >= deadline_s:
                raise UnavailableError(f"{self._path} has been held by another process for {timeout_s:g} s")
            time.sleep(_POLL_INTERVAL_S)

    def wait(self) -> None:
        """Wait for the lock without a limit; only for a process that does nothing else."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, self._kind)
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the lock up; nothing happens when it is not held."""
        if self._descriptor is not None:
            # Closed, not LOCK_UN: that would take the lock from our forked children as well.
            os.close(self._descriptor)
            self._descriptor = None

    def write(self, text: str) -> None:
        """Say in the file who holds the lock."""
        assert self._descriptor is not None, "only the holder writes"
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, text.encode(), 0)


def is_held(path: Path) -> bool:
    """Does any process hold a lock on `path` right now?"""
    probe = FileLock(path)
    free = probe.try_acquire()
    probe.release()
    return not free


@contextmanager
def held(path: Path, timeout_s: float) -> Iterator[None]:
    """Hold the exclusive lock on `path` for a block.

    Raises:
        UnavailableError: If it could not be had within `timeout_s`.
    """
    lock = FileLock(path)
    lock.acquire(timeout_s)
    try:
        yield
    finally:
        lock.release()
