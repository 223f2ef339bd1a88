"""A failed attempt: when the message comes again, as which attempt, what is kept of the failure, and when it ends."""

import itertools
import json
import logging
import math
import threading
import time

import pytest
from support.ledger import Recorder, dead, failing, failing_once, parked, wait_settled
from support.processes import Process, Task
from support.shell import GROUP, TOPIC, committed, drain, query, terminate, wait_until

from coordinator import Reject, Retry
from coordinator.errors import UnavailableError


def test_handler__raises__comes_again_no_earlier_than_its_delays(shell, dsn):
    book = Recorder(failing({0}))
    shell.subscribe(book, retry=[0.3, 0.6], max_attempts=4)
    shell.app.publish(TOPIC, 0)
    with shell:
        wait_until(lambda: dead(dsn))
    seen = book.of(0)
    assert [one.attempt for one in seen] == [1, 2, 3, 4]
    waits_s = [later.started_s - earlier.ended_s for earlier, later in itertools.pairwise(seen)]
    # The last of the list repeats.
    for wait_s, delay_s in zip(waits_s, [0.3, 0.6, 0.6], strict=True):
        assert delay_s <= wait_s < delay_s + 0.5


def test_handler__raises__others_do_not_wait(shell, dsn):
    book = Recorder(failing_once({0}))
    shell.subscribe(book, retry=[1.0])
    shell.app.publish_many(TOPIC, list(range(50)))
    with shell:
        wait_settled(dsn)
    assert book.attempts(0) == [1, 2]
    assert len(book.seen) == 51
    assert book.values()[-1] == 0


def test_backoff__nothing_said__doubles_from_a_second_with_jitter(shell):
    """I14 for the default: half a second to a second, then one to two."""
    book = Recorder(failing({0}))
    shell.subscribe(book)
    shell.app.publish(TOPIC, 0)
    with shell:
        wait_until(lambda: len(book.seen) == 3)
    first, second, third = book.seen
    assert 0.5 <= second.started_s - first.ended_s < 1.5
    assert 1.0 <= third.started_s - second.ended_s < 2.5


def test_retry__delay_durable__restart_changes_nothing(make_shell, dsn):
    """The delay is counted from the failure, not from the start of whoever comes next."""
    first, second = make_shell("first"), make_shell("second")
    failed, again = Recorder(failing({0})), Recorder()
    first.subscribe(failed, retry=[1.5])
    second.subscribe(again, retry=[1.5])
    first.app.publish(TOPIC, 0)
    first.start()
    wait_until(lambda: parked(dsn))
    first.stop()
    with second:
        wait_settled(dsn)
    (one,), (two,) = failed.seen, again.seen
    assert (one.attempt, two.attempt) == (1, 2)
    assert 1.5 <= two.started_s - one.ended_s < 2.5


def test_retry__delay_durable__survives_a_takeover_uncharged(make_shell, dsn, tmp_path):
    """SIGKILL while it waits: it was not running, so no crash is charged, and it is not early."""
    shell = make_shell()
    again = Recorder()
    shell.subscribe(again)
    for value in range(3):
        shell.app.publish(TOPIC, value, partition=0)
    settings = {"lease_s": 1.0, "heartbeat_s": 0.2, "self_fence_margin_s": 0.2, "membership_poll_s": 0.2}
    task = Task(
        dsn,
        TOPIC,
        GROUP,
        mode="subscribe",
        shell=shell.kind,
        raise_on=[0],
        freeze_after=1,
        settings=settings,
        options={"retry": [3.0]},
    )
    with Process(task, tmp_path) as victim:
        wait_until(lambda: victim.events("frozen") and parked(dsn))
        (failed,) = victim.events("failed")
        victim.kill()
        with shell:
            wait_settled(dsn)
    assert [(one.attempt, one.value) for one in again.of(0)] == [(2, 0)]
    due_s = 3.0 - (time.time() - failed["at"])
    assert again.of(0)[0].started_s >= time.monotonic() + due_s
    assert query(dsn, "select count(*) from coordinator.retries") == [(0,)]


def test_retry__raised__says_the_delay_and_counts(shell, dsn):
    def act(_message):
        raise Retry(0.4)

    book = Recorder(act)
    shell.subscribe(book, max_attempts=3, retry=[5.0])
    shell.app.publish(TOPIC, 0)
    with shell:
        wait_until(lambda: dead(dsn))
    assert book.attempts(0) == [1, 2, 3]
    assert all(0.4 <= b.started_s - a.ended_s < 1.0 for a, b in itertools.pairwise(book.seen))
    assert dead(dsn)[0]["reason"] == "attempts"


def test_reject__raised__is_a_dead_letter_at_once(shell, dsn):
    def act(_message):
        raise Reject("no such customer")

    book = Recorder(act)
    shell.subscribe(book)
    shell.app.publish(TOPIC, 0)
    with shell:
        wait_until(lambda: dead(dsn))
        wait_settled(dsn)
    (letter,) = dead(dsn)
    assert (letter["reason"], letter["error"], letter["attempts"]) == ("rejected", "no such customer", 1)
    assert book.attempts(0) == [1]


def test_policy__by_class__the_nearest_decides(shell, dsn, caplog):
    class PermanentError(ValueError): ...

    errors = {
        0: ValueError("again"),
        1: PermanentError("never"),
        2: LookupError("soon"),
        3: KeyError("as a lookup error"),
    }

    def act(message):
        if message.value in errors and message.attempt == 1:
            raise errors[message.value]

    book = Recorder(act)
    shell.subscribe(
        book, retry=[0.2], on_error={ValueError: "retry", PermanentError: "reject", LookupError: 0.6}, concurrency=4
    )
    shell.app.publish_many(TOPIC, [0, 1, 2, 3])
    with shell:
        wait_settled(dsn)
    waits_s = {}
    for value in (0, 2, 3):
        first, second = book.of(value)
        waits_s[value] = second.started_s - first.ended_s
    assert waits_s[0] >= 0.2
    assert min(waits_s[2], waits_s[3]) >= 0.6
    # How long it waited at most is the machine's affair.
    nacks = [record for record in caplog.records if record.msg == "delivery.nacked"]
    assert {record.offset: record.delay_s for record in nacks} == {0: 0.2, 1: None, 2: 0.6, 3: 0.6}
    assert [letter["error"] for letter in dead(dsn)] == ["PermanentError: never"]


@pytest.mark.parametrize(
    ("own", "wanted"), [(2, 2), (7, 7), ("2", 2), ("many", 4), ("", 4), (0, 4), (-1, 4), (True, 4), (2.5, 4)]
)
def test_max_attempts__own_header__outranks_what_is_a_number(shell, dsn, own, wanted):
    book = Recorder(failing({0}))
    shell.subscribe(book, retry=[0.01], max_attempts=4)
    shell.app.publish(TOPIC, 0, headers={"max-attempts": own})
    with shell:
        wait_until(lambda: dead(dsn))
    assert len(book.seen) == dead(dsn)[0]["attempts"] == wanted


def test_nack__of_the_explicit_consumer__says_the_delay(shell):
    shell.app.publish(TOPIC, 0)
    with shell.app.consumer(TOPIC, group=GROUP) as consumer:
        (message,) = consumer.poll(1, 5)
        message.nack(delay_s=0.5)
        at_s = time.monotonic()
        (again,) = consumer.poll(1, 5)
        assert 0.5 <= time.monotonic() - at_s < 1.0
        assert again.attempt == 2
        again.ack()


def test_history__of_many_failures__keeps_the_first_and_the_last(shell, dsn):
    def act(message):
        raise ValueError(f"attempt {message.attempt} " + "x" * 10_000)

    shell.subscribe(Recorder(act), retry=[0.01], max_attempts=9)
    shell.app.publish(TOPIC, 0)
    with shell:
        wait_until(lambda: dead(dsn))
    (letter,) = dead(dsn)
    assert [error["attempt"] for error in letter["errors"]] == [1, 6, 7, 8, 9]
    for error in letter["errors"]:
        assert error["error"].startswith(f"ValueError: attempt {error['attempt']} ")
        assert len(error["error"]) <= 2000
        assert len(error["traceback"]) <= 6000
        assert "Traceback" in error["traceback"]


AWKWARD = [
    "nul \0 in it",
    "lone \ud800 surrogate",
    "\udcff\0" * 3000,
    "quote ' \" \\ %s {} \\u0000",
    "",
    "\x1b[31m red",
]


@pytest.mark.parametrize("text", AWKWARD, ids=["nul", "surrogate", "long", "quotes", "empty", "escape"])
@pytest.mark.parametrize("how", ["raise", "Reject", "Retry", "reject", "nack"])
def test_error_text__what_postgresql_cannot_store__never_loops(shell, dsn, monkeypatch, text, how):
    """Case 26."""

    def act(message):
        match how:
            case "raise":
                raise ValueError(text)
            case "Reject":
                raise Reject(text)
            case "Retry":
                raise Retry(0.01, text)
            case "reject":
                message.reject(text)
            case "nack":
                message.nack(delay_s=0.01)

    # The tracebacks themselves are nothing that a test's report could carry.
    failures = []
    logger = logging.getLogger("coordinator")
    monkeypatch.setattr(logger, "handle", lambda record: failures.append(record.msg))
    book = Recorder(act)
    shell.subscribe(book, retry=[0.01], max_attempts=2)
    shell.app.publish(TOPIC, 0, key="\N{SNOWMAN}")
    shell.app.publish(TOPIC, 1, key="other")
    with shell:
        wait_until(lambda: len(dead(dsn)) == 2, 5)
        wait_settled(dsn, 5)
    assert len(book.seen) == (4 if how in ("raise", "Retry", "nack") else 2)
    assert "exchange.failed" not in failures


@pytest.mark.parametrize("delay_s", [math.nan, math.inf, -1.0, 1e300])
@pytest.mark.parametrize("how", ["Retry", "nack", "callable"])
def test_delay__is_no_sensible_number__does_not_stop_the_rest(shell, dsn, delay_s, how):
    """Whatever becomes of that message, the group goes on, and the message is not lost."""

    def act(message):
        if message.value == 0:
            if how == "Retry":
                raise Retry(delay_s)
            if how == "nack":
                message.nack(delay_s=delay_s)
            else:
                raise ValueError

    book = Recorder(act)
    shell.subscribe(book, retry=(lambda _attempt: delay_s) if how == "callable" else [0.1], max_attempts=3)
    shell.app.publish_many(TOPIC, list(range(20)))
    with shell:
        wait_until(lambda: {*book.values()} == {*range(20)}, 5)
        wait_until(lambda: parked(dsn) or dead(dsn), 5)
        shell.app.publish(TOPIC, 20)
        wait_until(lambda: 20 in book.values(), 5)


def test_delay__callable_raises__does_not_stop_the_rest(shell, dsn):
    """A bug in the policy must not cost the worker, nor the message."""

    def delays(_attempt):
        raise ZeroDivisionError

    book = Recorder(failing({0, 1}))
    shell.subscribe(book, retry=delays, max_attempts=3)
    shell.app.publish_many(TOPIC, list(range(20)))
    with shell:
        wait_until(lambda: {*book.values()} == {*range(20)}, 5)
        wait_until(lambda: len(parked(dsn)) + len(dead(dsn)) == 2, 5)


def test_deadline__handler_that_overruns__runs_again_and_the_first_ack_counts(shell, dsn):
    """Case 7: where its deadline is not moved on there is a second run, and one outcome."""
    release = threading.Event()

    def act(message):
        if message.attempt == 1:
            release.wait(10)

    book = Recorder(act)
    shell.subscribe(book, max_processing_s=0, concurrency=2, max_attempts=3)
    shell.app.publish(TOPIC, 0)
    with shell:
        wait_until(lambda: book.started == [0, 0])
        wait_settled(dsn)
        release.set()
        wait_until(lambda: len(book.seen) == 2)
    assert sorted(book.attempts(0)) == [1, 2]
    assert dead(dsn) == parked(dsn) == []


def test_deadline__of_a_running_handler__is_moved_on(shell, dsn, caplog):
    """Case 7: five timeouts long, one run, and a warning that names it."""
    book = Recorder(lambda _message: time.sleep(2.5))
    shell.subscribe(book)
    shell.app.publish(TOPIC, 0)
    with shell:
        wait_settled(dsn)
    assert book.attempts(0) == [1]
    assert [record for record in caplog.records if "slow" in record.message or "deadline" in record.message]


def test_deadline__handler_never_ends__is_spent_as_failures_are(shell, dsn):
    release = threading.Event()
    book = Recorder(lambda message: release.wait(10) if message.value == 0 else None)
    shell.subscribe(book, max_processing_s=0, concurrency=4, max_attempts=2)
    shell.app.publish_many(TOPIC, [0, 1, 2])
    with shell:
        wait_until(lambda: dead(dsn))
        wait_settled(dsn)
        release.set()
    (letter,) = dead(dsn)
    assert (letter["reason"], letter["attempts"]) == ("attempts", 2)
    assert "deadline" in letter["error"]


def test_late_answers__of_the_first_run__a_nack_is_ignored_and_an_ack_counts(shell, dsn):
    """Case 25: taken back, delivered again; then the first run's nack, reject and extend come, then its ack."""
    for value in range(3):
        shell.app.publish(TOPIC, value)
    with shell.app.consumer(TOPIC, group=GROUP, retry=[0.1]) as consumer:
        firsts = drained(consumer, 3)
        seconds = drained(consumer, 3)
        assert {message.attempt for message in seconds.values()} == {2}
        firsts[0].nack(delay_s=0)
        firsts[1].reject("late")
        assert not firsts[2].extend(60)
        assert all(message.delivery.live for message in seconds.values())
        for message in seconds.values():
            message.ack()
        for message in firsts.values():
            message.ack()
        consumer.commit()
        assert consumer.poll(1, 0.3) == []
    assert dead(dsn) == parked(dsn) == []


def test_late_answers__around_the_deadline__end_in_one_outcome(shell, dsn):
    """Case 25, within a millisecond of the deadline, on both sides of it."""
    with shell.app.consumer(TOPIC, group=GROUP, retry=[0.0], max_attempts=100) as consumer:
        for value in range(8):
            shell.app.publish(TOPIC, value)
            (message,) = consumer.poll(1, 5)
            left_s = message.delivery.deadline_s - time.monotonic() + (value - 4) * 0.0005
            time.sleep(left_s)
            (message.nack if value % 2 else message.ack)()
            for again in consumer.poll(1, 0.3 if value % 2 == 0 else 5):
                again.ack()
        consumer.commit()
        assert drain(consumer, 1, 0.3) == []
        assert consumer.at_end(5)
    assert sum(committed(dsn).values()) == 8
    assert dead(dsn) == parked(dsn) == []


def test_nack__between_acks_then_killed__only_it_comes_again(shell, dsn, tmp_path):
    """Case 2: 1, 2, 4, 5 acked, 3 nacked, SIGKILL: 3 comes again, the others do not."""
    for value in range(5):
        shell.app.publish(TOPIC, value, partition=0)
    settings = {"lease_s": 1.0, "heartbeat_s": 0.2, "self_fence_margin_s": 0.2}
    task = Task(
        dsn, TOPIC, GROUP, mode="subscribe", shell=shell.kind, raise_on=[2], settings=settings, options={"retry": [1.5]}
    )
    with Process(task, tmp_path) as victim:
        wait_until(lambda: committed(dsn).get(0) == 5)
        victim.kill()
    assert [(row["offset"], row["fails"]) for row in parked(dsn)] == [(2, 1)]
    book = Recorder()
    shell.subscribe(book)
    with shell:
        wait_settled(dsn)
    assert [(seen.value, seen.attempt) for seen in book.seen] == [(2, 2)]


def test_failures__of_a_hundred__use_rows_and_no_ranges(shell, dsn):
    """A parked message leaves no hole: committed passes it, and the state of a partition stays small."""
    book = Recorder(lambda message: failing(set(range(0, 200, 2)))(message) if message.attempt == 1 else None)
    shell.subscribe(book, retry=[1.5])
    shell.app.publish_many(TOPIC, list(range(200)))
    with shell:
        wait_until(lambda: len(parked(dsn)) == 100)
        wait_until(lambda: sum(committed(dsn).values()) == 200)
        ((longest,),) = query(dsn, "select max(length(done::text)) from coordinator.progress where committed > 0")
        wait_settled(dsn)
    assert longest < 500
    assert len(book.seen) == 300


@pytest.mark.direct("ends the sessions of one client")
def test_outage__met_by_the_process_too__is_not_charged(shell, dsn):
    """What a handler could not do because there was no database comes again as the same attempt."""
    tries = []

    def act(message):
        tries.append(message.attempt)
        if len(tries) < 3:
            terminate(dsn, "coordinator work")
            # Until the process has met it, too: it looks once a second at the latest.
            time.sleep(1.3)
            raise UnavailableError("no database")

    shell.subscribe(Recorder(act))
    shell.app.publish(TOPIC, 0)
    with shell:
        wait_settled(dsn)
    assert tries == [1, 1, 1]


def test_session_lost__by_a_handler_alone__is_its_failure(shell, dsn):
    """A message that costs its handler the session, while the server is there, must not be tried for ever."""

    def act(_message):
        raise UnavailableError("terminated")

    book = Recorder(act)
    shell.subscribe(book, retry=[0.05], max_attempts=3)
    shell.app.publish(TOPIC, 0)
    with shell:
        wait_until(lambda: dead(dsn))
    assert book.attempts(0) == [1, 2, 3]


def drained(consumer, count):
    """Take, without settling, until `count` messages came; by value."""
    found = {}
    deadline_s = time.monotonic() + 5
    while len(found) < count and time.monotonic() < deadline_s:
        found |= {message.value: message for message in consumer.poll(count, 0.5)}
    assert len(found) == count, json.dumps(sorted(found))
    return found
