"""Fixtures for the tests of metrics, health and the dashboard: an application, what it serves, and requests to it."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

import pytest
from support.http import get
from support.shell import GROUP, TOPIC, short, wait_until

from coordinator import Coordinator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def free_port() -> int:
    """A port that was free a moment ago."""
    return unused_port()


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def app(dsn: str) -> Iterator[Coordinator]:
    """A coordinator with a topic of two partitions that group ledger reads."""
    with Coordinator(dsn, client_id="test", settings=short()) as made:
        made.create_topic(TOPIC, 2)
        made.consumer(TOPIC, group=GROUP).start().close()
        yield made


@pytest.fixture
def serving(dsn: str) -> Iterator[Callable[..., int]]:
    """Serve as `coordinator serve` does, in a thread; returns the port."""
    stack = contextlib.ExitStack()

    def serve(at: str = dsn) -> int:
        from coordinator.dashboard.app import pages_of

        server = stack.enter_context(Coordinator(at, client_id="server", settings=short()))
        port = unused_port()
        thread = threading.Thread(
            target=server.serve,
            kwargs={"port": port, "pages": pages_of(server), "install_signal_handlers": False},
            daemon=True,
        )
        thread.start()
        stack.callback(thread.join, 20)
        stack.callback(server.stop)

        def answers() -> bool:
            with contextlib.suppress(OSError):
                return get(port, "/livez").status > 0
            return False

        wait_until(answers, 30, "an answer")
        return port

    with stack:
        yield serve
