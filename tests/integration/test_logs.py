"""Log lines in both forms: no payload, no key and no text of a handler's exception is ever in one."""

from __future__ import annotations

import io
import json
import logging

import pytest
from support.proxy import backend_count
from support.shell import GROUP, TOPIC, query, terminate, wait_until

from coordinator import Reject, Retry
from coordinator.observe.logs import show

# Each is one word, so that no way of cutting or joining lines hides it.
PAYLOAD, KEY, HEADER = "payloadword", "keyword", "headerword"


@pytest.fixture(params=["text", "json"])
def lines(request):
    """Everything that is logged at the lowest level, as it would stand in a file."""
    logger = logging.getLogger("coordinator")
    former = (logger.level, logger.handlers, logger.propagate)
    stream = io.StringIO()
    show(request.param, "debug", stream)
    yield lambda: stream.getvalue().splitlines()
    logger.level, logger.handlers, logger.propagate = former
    if request.param == "json":
        for line in stream.getvalue().splitlines():
            assert {"at", "level", "event", "logger"} <= json.loads(line).keys()


@pytest.mark.direct("ends the sessions of one client")
def test_lines__of_failures_of_every_kind__hold_no_payload_key_or_text_of_users(shell, dsn, lines):
    def handle(message):
        value = message.value
        if value["kind"] == "raise" and message.attempt == 1:
            raise KeyError(f"{PAYLOAD} of {message.key}")
        if value["kind"] == "chain" and message.attempt == 1:
            try:
                raise ValueError(PAYLOAD)
            except ValueError as error:
                raise RuntimeError(KEY) from error
        if value["kind"] == "nack" and message.attempt == 1:
            message.nack(delay_s=0)
        elif value["kind"] == "retry" and message.attempt == 1:
            raise Retry(0)
        elif value["kind"] == "reject":
            raise Reject(f"{PAYLOAD} {message.key}")

    def hook(letter):
        raise ValueError(f"{letter} {PAYLOAD}")

    shell.subscribe(handle, on_dead_letter=hook, retry=[0.0])
    shell.start()
    for kind in ("plain", "raise", "chain", "nack", "retry", "reject"):
        shell.app.publish(TOPIC, {"kind": kind, "secret": PAYLOAD}, key=f"{KEY}-{kind}", headers={"h": HEADER})
    shell.app.publish(TOPIC, f"no json {PAYLOAD}".encode(), key=KEY, headers={"content": HEADER})
    wait_until(lambda: query(dsn, "select count(*) from coordinator.dead_letters")[0][0] >= 1, 30, "a dead letter")
    wait_until(lambda: sum("delivery.nacked" in line for line in lines()) >= 4, 30, "failures")
    terminate(dsn, "coordinator ")
    wait_until(lambda: any("connection.lost" in line for line in lines()), 30, "an outage")
    # Who has no connection when it stops can't leave.
    wait_until(lambda: any("connection.restored" in line for line in lines()), 30, "its end")
    wait_until(lambda: backend_count(dsn, "coordinator control"), 30, "the control loop")
    shell.stop()
    text = "\n".join(lines())
    assert "delivery.dead_lettered" in text
    assert "handler.failed" in text
    assert "hook.failed" in text
    assert "KeyError" in text
    assert "member.left" in text
    for word in (PAYLOAD, KEY, HEADER):
        assert word not in text, [line for line in lines() if word in line]


@pytest.mark.direct("ends the sessions of one client")
def test_outage__while_nothing_is_done__is_told_with_its_end(shell, dsn, lines):
    shell.subscribe(lambda message: None)
    shell.start()
    wait_until(lambda: any("member.joined" in line for line in lines()), 30, "a member")
    terminate(dsn, "coordinator control")
    wait_until(lambda: any("connection.restored" in line for line in lines()), 30, "the end of the outage")
    assert any("connection.lost" in line for line in lines())
    shell.stop()


def test_lines__of_what_the_server_refuses__have_no_rows(shell, dsn, lines):
    query(
        dsn,
        "create function refuse() returns trigger language plpgsql as $$begin raise exception 'no' using detail = new::text; end$$",
    )
    query(dsn, "create trigger refuse before insert on coordinator.dead_letters for each row execute function refuse()")
    shell.subscribe(lambda message: message.reject("x"))
    shell.start()
    shell.app.publish(TOPIC, {"secret": PAYLOAD}, key=KEY)
    wait_until(lambda: any("dead_letter.refused" in line for line in lines()), 30, "a refusal")
    shell.stop()
    for word in (PAYLOAD, KEY):
        assert not [line for line in lines() if word in line]


def test_group__in_lines__is_named(shell, lines):
    shell.subscribe(lambda message: None)
    shell.start()
    wait_until(lambda: any(GROUP in line and "member.joined" in line for line in lines()), 30)
