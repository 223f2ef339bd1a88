"""The shared server: one for several processes, stopped after the last of them, however that one ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner

from coordinator.cli.main import cli as main
from coordinator.embedded import EmbeddedServer, shared_server
from coordinator.embedded.locks import is_held
from coordinator.embedded.places import Layout
from coordinator.errors import ConfigError

WAIT_S = 20.0
CLIENT = """
import sys
from pathlib import Path
from coordinator.embedded import shared_server
with shared_server(Path(sys.argv[1])) as server:
    print(server.pid, server.dsn, flush=True)
    sys.stdin.read()
"""


@contextmanager
def client(folder: Path):
    """Another process that uses the server on `folder`; yields it, its server's pid and the DSN."""
    process = subprocess.Popen(
        [sys.executable, "-c", CLIENT, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        try:
            pid, dsn = process.stdout.readline().split()
            yield process, int(pid), dsn
        finally:
            process.kill()


def wait_until(condition, what: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {WAIT_S} s: {what}"
        time.sleep(0.02)


def stopped(folder: Path) -> bool:
    return not is_held(Layout(folder).keeper_lock) and not (folder / "pgdata" / "postmaster.pid").exists()


@pytest.fixture(autouse=True)
def _all_stopped(folder):
    yield
    wait_until(lambda: stopped(folder), "the server stops after the test")


def test_two_processes__same_folder__share_one_server(folder):
    with client(folder) as (_, first, dsn), client(folder) as (_, second, other_dsn):
        assert (first, dsn) == (second, other_dsn)


def test_first_process_ends__second__keeps_the_server(folder):
    with client(folder) as (first, pid, _), client(folder) as (second, _, dsn):
        first.stdin.close()
        assert first.wait(WAIT_S) == 0
        with psycopg.connect(dsn) as connection:
            assert connection.execute("select 1").fetchone() == (1,)
        assert second.poll() is None
        with shared_server(folder) as third:
            assert third.pid == pid


def test_last_client__killed__server_stops(folder):
    with client(folder) as (process, _, _):
        process.send_signal(signal.SIGKILL)
        process.wait(WAIT_S)
        wait_until(lambda: stopped(folder), "the server stops")


def test_last_client__closes__next_one_finds_the_data(folder):
    with shared_server(folder) as server, psycopg.connect(server.dsn) as connection:
        connection.execute("create table kept as select 7 as n")
    # At once: the keeper may be about to stop the server.
    with shared_server(folder) as server, psycopg.connect(server.dsn) as connection:
        assert connection.execute("select n from kept").fetchone() == (7,)


def test_many_processes__start_together__one_server(folder):
    starts = [
        subprocess.Popen(
            [sys.executable, "-c", CLIENT, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(5)
    ]
    told = {process.stdout.readline() for process in starts}
    for process in starts:
        process.communicate()
    assert len(told) == 1
    assert told != {""}


def test_server__killed_under_its_clients__is_started_again(folder):
    with shared_server(folder) as server:
        old = server.pid
        os.kill(old, signal.SIGKILL)

        def back() -> bool:
            try:
                with psycopg.connect(server.dsn) as connection:
                    return connection.execute("select 1").fetchone() == (1,)
            except psycopg.OperationalError:
                return False

        wait_until(lambda: back() and server.pid != old, "the keeper starts it again")


def test_keeper__killed__next_client_takes_the_running_server_over(folder):
    with shared_server(folder) as server:
        pid = server.pid
        keeper = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(keeper, signal.SIGKILL)
        wait_until(lambda: not is_held(Layout(folder).keeper_lock), "the keeper is gone")
        with shared_server(folder) as other:
            assert other.pid == pid


def test_private_server__on_a_shared_folder__is_refused(folder):
    with shared_server(folder), pytest.raises(ConfigError, match="shared"):
        EmbeddedServer.start(folder)


def test_shared_server__on_a_private_folder__is_refused(folder):
    with EmbeddedServer.start(folder), pytest.raises(ConfigError, match="not shared"):
        shared_server(folder)


def test_command__schema_that_is_not_there__is_not_made(folder):
    def call(*arguments):
        return CliRunner().invoke(main, ["--dsn", f"embedded:{folder}", *arguments])

    listed = call("topics", "list")
    assert listed.exit_code == 0, listed.stderr
    for command in (("topics", "list"), ("topics", "create", "orders"), ("messages", "publish", "orders")):
        ended = call("--schema", "nope", *command)
        assert ended.exit_code != 0
        assert "schema 'nope' is not installed" in ended.stderr
        assert "db upgrade" in ended.stderr
    with shared_server(folder) as server, psycopg.connect(server.dsn) as connection:
        found = connection.execute("select n.nspname from pg_namespace n where n.nspname in ('nope', 'coordinator')")
        assert found.fetchall() == [("coordinator",)]
    assert call("--schema", "nope", "db", "upgrade").exit_code == 0
    assert call("--schema", "nope", "topics", "create", "orders").exit_code == 0
