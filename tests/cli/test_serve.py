"""`coordinator serve`, `health`, `metrics`, and the port of `run`: as processes, over real HTTP."""

from __future__ import annotations

import json
import re
import signal
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from support.http import get, samples

from coordinator import Coordinator

if TYPE_CHECKING:
    from pathlib import Path

LIMIT_S = 60


def port_of(process: Any) -> int:
    """Read the log until it names the port."""
    for line in process.stderr:
        found = re.search(rb"port=(\d+)", line)
        if found:
            return int(found[1])
    raise AssertionError(f"ended with {process.wait()}")


def until(condition: Any, limit_s: float = LIMIT_S) -> Any:
    deadline_s = time.monotonic() + limit_s
    while True:
        try:
            answer = condition()
        except OSError:
            answer = None
        if answer:
            return answer
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def free_ports() -> int:
    """The first of two ports in a row that were free a moment ago."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            try:
                second.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port


def test_serve__until_sigterm__answers_maintains_and_ends_with_0(start: Any, dsn: str) -> None:
    with Coordinator(dsn) as app:
        app.create_topic("orders")
        app.publish("orders", 1, delay_s=0.2)
        process = start("--dsn", dsn, "serve", "--port", 0)
        port = port_of(process)
        assert get(port, "/livez").json == {"status": "green", "reasons": []}
        assert "Topics" in get(port, "/").text
        until(lambda: "coordinator_topic_log_end_offset" in get(port, "/metrics").text)
        until(lambda: app.peek("orders"))
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_S) == 0


def test_serve__without_the_dashboard__names_its_pages(start: Any, dsn: str) -> None:
    process = start("--dsn", dsn, "serve", "--port", 0, "--no-dashboard", "--log-format", "json")
    first = json.loads(process.stderr.readline())
    assert (first["event"], first["level"]) == ("serving.started", "info")
    assert "/metrics" in get(first["port"], "/").text
    assert get(first["port"], "/groups/x").status == 404


def test_serve__no_database__is_3(on_nothing: Any) -> None:
    assert on_nothing("serve", "--port", 0).code == 3


@pytest.fixture
def on_nothing(run: Any) -> Any:
    def call(*arguments: object) -> Any:
        return run("--dsn", "postgresql://127.0.0.1:1/nothing", *arguments)

    return call


def test_health__groups_and_limits__green_and_red_with_reasons(on: Any, dsn: str) -> None:
    assert on("health").lines == ["green"]
    assert on("health", "--live").lines == ["green"]
    with Coordinator(dsn) as app:
        app.create_topic("orders")
        app.publish("orders", 1)
        app.consumer("orders", group="billing").start().close()
    ended = on("health", "--ready", "--max-lag", 0, "--json")
    assert ended.code == 1
    assert ended.json["status"] == "red"
    assert {reason["code"] for reason in ended.json["reasons"]} == {"lag", "no_members"}
    ended = on("health", "--group", "billing")
    assert (ended.code, ended.lines[0]) == (1, "red")
    assert ended.lines[1].startswith("no_members: group billing")
    assert on("health", "--group", "nobody").code == 2


def test_health__of_a_process__asks_it(start: Any, on: Any, on_nothing: Any, dsn: str) -> None:
    process = start("--dsn", dsn, "serve", "--port", 0)
    url = f"http://127.0.0.1:{port_of(process)}"
    # It needs no database of its own for that.
    ended = on_nothing("health", "--live", "--url", url)
    assert (ended.code, ended.text) == (0, "green\n")
    assert on("health", "--url", url).code == 0
    process.kill()
    process.wait()
    ended = on("health", "--live", "--url", url, "--json")
    assert (ended.code, ended.json["reasons"][0]["code"]) == (1, "no_answer")
    assert on("health", "--live", "--url", "file:///etc/passwd").code == 2


def test_health__no_database__is_3(on_nothing: Any) -> None:
    assert on_nothing("health").code == 3
    assert on_nothing("health", "--live").code == 3


def test_metrics_print__text_and_json__say_the_same(on: Any, dsn: str) -> None:
    with Coordinator(dsn) as app:
        app.create_topic("orders", 2)
        app.publish("orders", 1, partition=1)
        app.consumer("orders", group="billing").start().close()
    found = samples(on("metrics", "print").text)
    name = 'coordinator_group_lag{group="billing",partition="1",topic="orders"}'
    assert found[name] == 1
    assert not [sample for sample in found if sample.startswith("python_")]
    as_json = on("metrics", "print", "--json").json["metrics"]["coordinator_group_lag"]["samples"]
    assert {"labels": {"group": "billing", "topic": "orders", "partition": "1"}, "value": 1} in as_json


def test_metrics_files__need_no_database__and_are_whole(run: Any) -> None:
    (group,) = yaml.safe_load(run("metrics", "rules", "--runbooks", "https://wiki/x").text)["groups"]
    assert all(rule["annotations"]["runbook_url"].startswith("https://wiki/x#") for rule in group["rules"])
    assert run("metrics", "dashboard").json["panels"]


APP = """
from coordinator import Coordinator

app = Coordinator()

@app.subscribe("orders", group="billing")
def handle(message):
    pass
"""


def test_run__two_processes_with_a_port__each_has_its_own_and_tells_what_it_reads(
    start: Any, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "service.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    port = free_ports()
    with Coordinator(dsn) as app:
        app.create_topic("orders", 2)
    process = start(
        "--dsn", dsn, "run", "service:app", "--processes", 2, "--metrics-port", port, "--log-format", "json"
    )
    for each in (port, port + 1):
        until(lambda each=each: get(each, "/readyz").status == 200)
        until(lambda each=each: "coordinator_partitions_owned" in get(each, "/metrics").text)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    lines = [json.loads(line) for line in err.splitlines()]
    told = [line for line in lines if line["event"] == "group.subscribed"]
    assert [(line["group"], line["topics"], line["handler"]) for line in told] == [("billing", "orders", "handle")] * 2


@pytest.mark.parametrize("level", ["info", "warning"])
def test_run__log_level__decides_what_is_told(
    start: Any, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    (tmp_path / "service.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    with Coordinator(dsn) as app:
        app.create_topic("orders", 1)
        process = start("--dsn", dsn, "run", "service:app", "--log-level", level)
        until(lambda: app.groups() and app.groups()[0].members)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=LIMIT_S)
    assert (b"info: group.subscribed" in err) is (level == "info")
