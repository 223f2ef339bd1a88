"""Whoever is stopped while he sends an exchange must not leave a transaction open: nothing of the server's would end it."""

from __future__ import annotations

import select
import time

import psycopg
import pytest
from psycopg.waiting import Ready, Wait

from coordinator.db import exchange
from coordinator.errors import UnavailableError
from coordinator.protocol.statement import Statement

pytestmark = pytest.mark.direct("the session is looked for by its pid")

_OPEN = (
    "select count(*) from pg_stat_activity where pid = %s and state = 'active' and wait_event = 'ClientRead' "
    "and xact_start is not null"
)


def open_transactions(dsn, run):
    """Carry out `run(connection)` with a pause at each step of sending; at how many of them a transaction stood open."""
    found = 0
    with psycopg.connect(dsn, autocommit=True) as observer, psycopg.connect(dsn, autocommit=True) as connection:

        def wait(generator, interval=0.0):
            nonlocal found
            try:
                wanted = next(generator)
                while True:
                    time.sleep(0.03)
                    found += observer.execute(_OPEN, (connection.info.backend_pid,)).fetchone()[0]
                    reads = [connection.fileno()] if wanted & Wait.R else []
                    writes = [connection.fileno()] if wanted & Wait.W else []
                    readable, writable, _ = select.select(reads, writes, [], 5)
                    ready = (Ready.R if readable else 0) | (Ready.W if writable else 0)
                    wanted = generator.send(Ready(ready))
            except StopIteration as end:
                return end.value

        connection.wait = wait
        run(connection)
    return found


def test_pipeline__its_sender_is_slow_between_any_two_steps__leaves_no_transaction_open(dsn):
    statement = Statement("one", "select 1", (), lambda rows: rows[0][0])
    assert open_transactions(dsn, lambda connection: exchange.run_alone(connection, "coordinator", statement)) == 0


@pytest.mark.parametrize("closed", [False, True])
def test_pipeline__its_session_was_ended_before__is_told_as_lost_and_logged_by_nobody(dsn, caplog, closed):
    statement = Statement("one", "select 1", (), lambda rows: rows[0][0])
    with psycopg.connect(dsn, autocommit=True) as observer, psycopg.connect(dsn, autocommit=True) as connection:
        observer.execute("select pg_terminate_backend(%s, 5000)", (connection.info.backend_pid,))
        if closed:
            connection.close()
        with pytest.raises(UnavailableError):
            exchange.run_alone(connection, "coordinator", statement)
    assert not caplog.records


def test_pipeline__more_than_a_socket_holds__arrives_whole(dsn):
    payload = b"x" * (16 * 1024 * 1024)
    statement = Statement("many", "select octet_length(%b)", (payload,), lambda rows: rows[0][0])
    with psycopg.connect(dsn, autocommit=True) as connection:
        assert exchange.run_alone(connection, "coordinator", statement) == len(payload)


def test_pipeline__as_psycopg_sends_it__stands_open(dsn):
    """What it would be without: the mutant of the test above."""

    def run(connection):
        with connection.pipeline():
            for text in ("begin", "select 1", "commit"):
                connection.execute(text)

    assert open_transactions(dsn, run) > 0
