"""Every command there is, on a live group, as a table and as JSON: it does what it is for, and leaves no traceback.

A new command has no line here, and fails the test that walks the tree.
"""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.shell import query, wait_until
from support.tree import LEAVES

from coordinator import Coordinator, Settings

# Have tests of their own, which run them: they start programs, listen, measure, or end what the others need.
APART = {("run",), ("serve",), ("bench", "scaling"), ("bench", "fanout"), ("demo",), ("db", "psql")}
MEMBER, LATER = "the live one's id", "the scheduled message's id"
ROLE = f"cli_{uuid.uuid4().hex[:8]}"
# In the order in which they are run; standard input for those that read it; 1 for those that find something.
CALLS: list[tuple[tuple[str, ...], bytes, int]] = [
    (("db", "current"), b"", 0),
    (("db", "upgrade"), b"", 0),
    (("db", "sql"), b"", 0),
    (("db", "repair-sequences"), b"", 0),
    (("db", "grants", "--role", "reader", "--to", ROLE), b"", 0),
    (("config", "show"), b"", 0),
    (("config", "check"), b"", 0),
    (("topics", "create", "spare", "--partitions", "2"), b"", 0),
    (("topics", "list"), b"", 0),
    (("topics", "describe", "orders"), b"", 0),
    (("topics", "alter", "spare", "--max-backlog", "5"), b"", 0),
    (("topics", "add-partitions", "spare", "--partitions", "3"), b"", 0),
    (("topics", "rights", "spare", "--publish", "everybody", "--subscribe", "nobody"), b"", 0),
    (("topics", "rotate", "spare"), b"", 0),
    (("messages", "publish", "orders"), b'{"n": 1}\n{"n": 2}\n', 0),
    (("messages", "peek", "orders"), b"", 0),
    (("messages", "show", "orders", "0", "0"), b"", 0),
    (("messages", "consume", "orders", "--group", "other", "--exit-at-end"), b"", 0),
    (("scheduled", "list"), b"", 0),
    (("scheduled", "cancel", "orders", LATER), b"", 0),
    (("groups", "list"), b"", 0),
    (("groups", "describe", "billing"), b"", 0),
    (("groups", "describe", "billing", "--members"), b"", 0),
    (("groups", "describe", "billing", "--in-flight"), b"", 0),
    (("groups", "expire", "other", "--after-s", "86400"), b"", 0),
    (("groups", "pause", "billing"), b"", 0),
    (("groups", "resume", "billing"), b"", 0),
    (("groups", "seek", "other", "--to-earliest", "--execute"), b"", 0),
    (("groups", "skip", "other", "orders", "0", "0", "--execute"), b"", 0),
    (("lag",), b"", 0),
    (("members", "list"), b"", 0),
    (("members", "blocked"), b"", 0),
    (("members", "drain", MEMBER), b"", 0),
    (("members", "drain", MEMBER, "--undo"), b"", 0),
    (("dlq", "list", "billing"), b"", 0),
    (("dlq", "list", "other"), b"", 0),
    (("dlq", "show", "billing", "orders", "0", "1"), b"", 0),
    (("dlq", "stats", "billing"), b"", 0),
    (("dlq", "export", "billing"), b"", 0),
    (("dlq", "replay", "billing", "--dry-run"), b"", 0),
    (("dlq", "purge", "billing", "--yes"), b"", 0),
    (("sql", "views"), b"", 0),
    (("sql", "query", "who-is-behind"), b"", 0),
    (("doctor", "--without", "snapshots"), b"", 0),
    (("health", "--live"), b"", 0),
    (("health", "--group", "billing"), b"", 0),
    (("health", "--max-lag", "0"), b"", 1),
    (("metrics", "print"), b"", 0),
    (("metrics", "rules"), b"", 0),
    (("metrics", "dashboard"), b"", 0),
    (("maintain", "--once"), b"", 0),
    (("members", "evict", MEMBER), b"", 0),
    (("groups", "delete", "other", "--yes"), b"", 0),
    (("topics", "delete", "spare", "--yes"), b"", 0),
    (("db", "downgrade", "base", "--yes"), b"", 0),
    (("db", "upgrade"), b"", 0),
    (("db", "uninstall", "--yes"), b"", 0),
]
# Files for other programs: what they print is their form.
FILES = {("db", "sql"), ("metrics", "rules")}


def test_calls__cover_the_tree() -> None:
    called = {path for path in LEAVES for arguments, _, _ in CALLS if arguments[: len(path)] == path}
    assert set(LEAVES) - called - APART == set()


@pytest.mark.direct("a downgrade and a role of its own")
@pytest.mark.parametrize("form", ["table", "json"])
def test_commands__on_a_live_group__do_what_they_are_for(on: Any, dsn: str, form: str) -> None:
    query(dsn, f"create role {ROLE}")
    settings = Settings(lease_s=600, heartbeat_s=1, membership_poll_s=0.2)
    try:
        with Coordinator(dsn, settings=settings) as app:
            app.create_topic("orders", 2)
            for n in range(4):
                app.publish("orders", {"n": n}, partition=0)
            later = app.publish("orders", 1, deliver_at=datetime.now(UTC) + timedelta(days=1))
            consumer = app.consumer("orders", group="billing", ordering="none", retry=[600])
            held = {}
            while len(held) < 4:
                held |= {message.offset: message for message in consumer.poll(4, 30)}
            held[0].ack()
            held[1].reject("no")
            held[2].nack()
            consumer.commit()
            assert later.due_at is not None
            (schedule,) = app.scheduled()
            given = {MEMBER: consumer.member_id, LATER: str(schedule.schedule_id)}
            wrong = {}
            for arguments, stdin, code in CALLS:
                if arguments[:2] == ("members", "evict"):
                    given[MEMBER] = consumer.member_id
                words = [given.get(word, word) for word in arguments]
                ended = on(*words, *["--json"] * (form == "json"), stdin=stdin)
                path = next(path for path in LEAVES if arguments[: len(path)] == path)
                problem = problem_of(ended, code, as_json=form == "json" and path not in FILES)
                if problem:
                    wrong[arguments] = (problem, ended.err[-400:], ended.text[-400:])
            assert wrong == {}
    finally:
        query(dsn, f"drop owned by {ROLE}")
        query(dsn, f"drop role {ROLE}")


def problem_of(ended: Any, code: int, *, as_json: bool) -> str:
    if ended.code != code:
        return f"exit code {ended.code}, wanted {code}"
    if "Traceback" in ended.err or "bug" in ended.err:
        return "a bug"
    if not as_json:
        return "" if ended.out or ended.err else "nothing was said"
    try:
        # One object; or one a line, of a stream, which may be empty.
        found = (
            [json.loads(ended.out)]
            if ended.out.strip().count(b"\n") and ended.out.startswith(b"{\n")
            else ended.objects
        )
    except ValueError as error:
        return f"no JSON: {error}"
    return "" if all(isinstance(one, dict) for one in found) else "no objects"


def test_end_of_calls__schema_is_gone(on: Any, dsn: str) -> None:
    assert on("db", "uninstall", "--yes").code == 0
    assert query(dsn, "select to_regnamespace('coordinator')") == [(None,)]
    ended = on("topics", "list")
    assert (ended.code, "coordinator db upgrade" in ended.err) == (2, True)


@pytest.mark.parametrize("interrupt", ["pipe", "signal"])
def test_long_runner__its_reader_leaves_or_ctrl_c__ends_well(start: Any, on: Any, dsn: str, interrupt: str) -> None:
    import signal

    on("topics", "create", "orders")
    on("messages", "publish", "orders", stdin=b"1\n")
    process = start("messages", "consume", "orders", "--group", "g", "--dsn", dsn)
    assert process.stdout.readline()
    if interrupt == "signal":
        process.send_signal(signal.SIGINT)
    else:
        process.stdout.close()
        on("messages", "publish", "orders", stdin=b"2\n")
    assert process.wait(60) == 0
    assert b"Traceback" not in process.stderr.read()
    wait_until(lambda: query(dsn, "select count(*) from coordinator.members") == [(0,)], 30, "nobody left")
