"""What a publisher is told while there is no server."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator import AsyncCoordinator, Coordinator, Settings
from coordinator.db import schema
from coordinator.embedded import EmbeddedServer
from coordinator.errors import UnavailableError

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("shell", ["threads", "asyncio"])
def test_publish__server_was_stopped__says_what_the_last_attempt_met(shell):
    settings = Settings(pool_timeout_s=1.5)

    async def play(dsn, stop):
        async with AsyncCoordinator(dsn, settings=settings) as app:
            await app.create_topic("t")
            stop()
            with pytest.raises(UnavailableError):
                await app.publish("t", 1)
            with pytest.raises(UnavailableError) as raised:
                await app.publish("t", 1)
            return raised

    def play_threads(dsn, stop):
        with Coordinator(dsn, settings=settings) as app:
            app.create_topic("t")
            stop()
            with pytest.raises(UnavailableError):
                app.publish("t", 1)
            with pytest.raises(UnavailableError) as raised:
                app.publish("t", 1)
            return raised

    with EmbeddedServer.start() as server:
        schema.upgrade(server.dsn, "coordinator")
        raised = (
            play_threads(server.dsn, server.stop) if shell == "threads" else asyncio.run(play(server.dsn, server.stop))
        )
    assert "connection" in str(raised.value)
    assert any(word in str(raised.value) for word in ("refused", "No such file"))


def test_import__nobody_has_configured_logging__the_pools_warnings_are_not_on_standard_error():
    text = "import logging, coordinator.db.connect; logging.getLogger('psycopg.pool').warning('raw')"
    ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, cwd=ROOT, check=True)
    assert ended.stderr == ""
