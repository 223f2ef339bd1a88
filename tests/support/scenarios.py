"""What a shell must survive, as functions: the tests of delivery run them on each shell, tests/mutants on each shell with a rule broken."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from support.ledger import Recorder, dead, parked, wait_settled
from support.shell import TOPIC, committed, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.adapter import Shell


def first_run_speaks_late(make_shell: Callable[..., Shell], dsn: str, word: str) -> None:
    """Case 25: taken back, delivered again; while the second run is at it, the first says something of its own.

    A nack, a rejection, an extension and an exception of the first change nothing: the second is live, and its ack counts. An
    ack of the first counts, and then a failure of the second changes nothing.
    """
    shell = make_shell(visibility_timeout_s=0.4)
    second_runs, first_spoke = threading.Event(), threading.Event()
    wrong: list[object] = []

    def act(message: Any) -> None:
        if message.attempt == 1:
            if not second_runs.wait(20):
                wrong.append("the second did not start")
            if _speak(message, word):
                wrong.append("the first moved the deadline of the second")
            first_spoke.set()
            if word != "ack":
                raise ValueError("late")
        else:
            second_runs.set()
            first_spoke.wait(20)
            # Not in the same moment: what the first has said has come to the engine, and whatever it does has begun.
            time.sleep(0.1)
            message.extend(30)
            if word == "ack":
                raise ValueError("the second fails")

    book = Recorder(act)
    shell.subscribe(book, concurrency=2, max_processing_s=0, retry=[0.05], max_attempts=9)
    shell.app.publish(TOPIC, 0)
    with shell:
        wait_until(lambda: len(book.seen) >= 2, 30)
        wait_settled(dsn, 30)
    assert not wrong
    assert sorted(book.attempts(0)) == [1, 2]
    assert dead(dsn) == parked(dsn) == []


def _speak(message: Any, word: str) -> bool:
    if word == "nack":
        message.nack(delay_s=0)
    elif word == "reject":
        message.reject("late")
    elif word == "extend":
        return message.extend(60)
    else:
        message.ack()
    return False


def stop_after_work(make_shell: Callable[..., Shell], dsn: str) -> None:
    """Case 27: what was finished before the stop is acked when it returns, also what no exchange has carried yet."""
    shell = make_shell()
    # A handler takes long enough for its ack to be alone, so that it waits for company when the stop comes.
    book = Recorder(lambda _message: time.sleep(0.02))
    shell.subscribe(book)
    shell.app.publish_many(TOPIC, list(range(500)))
    shell.start()
    wait_until(lambda: len(book.seen) > 20, 30)
    assert shell.stop()
    assert sum(committed(dsn).values()) == len(book.seen)
    heir = make_shell(client_id="heir")
    rest = Recorder()
    heir.subscribe(rest)
    with heir:
        wait_settled(dsn, 30)
    assert sorted(book.values() + rest.values()) == list(range(500))


def stop_during_work(make_shell: Callable[..., Shell], dsn: str) -> None:
    """Case 27: what is unfinished when the drain is over is given back at once, and not charged."""
    # A lease that nobody waits for.
    shell = make_shell(drain_timeout_s=0.2, lease_s=60.0)
    held = threading.Event()

    def hold(_message: object) -> None:
        held.wait(60)

    book = Recorder(hold)
    shell.subscribe(book, concurrency=2)
    shell.app.publish(TOPIC, 0, partition=0)
    shell.app.publish(TOPIC, 1, partition=1)
    shell.start()
    heir = make_shell(client_id="heir")
    rest = Recorder()
    heir.subscribe(rest)
    try:
        wait_until(lambda: len(book.started) == 2, 30)
        assert not shell.stop()
        with heir:
            wait_until(lambda: len(rest.seen) == 2, 15, "the next has it")
            wait_settled(dsn, 15)
    finally:
        held.set()
    assert {seen.attempt for seen in rest.seen} == {1}
    assert dead(dsn) == []
