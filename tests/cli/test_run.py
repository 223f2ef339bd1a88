"""`coordinator run`: what it imports, how it ends, and the processes that it looks after."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from coordinator import Coordinator

LIMIT_S = 60

# Writes a line per message with its process; what a message says is what its handler does.
APPLICATION = """
import os, signal, time
from pathlib import Path
from coordinator import Coordinator, Settings

settings = Settings(lease_s=2, heartbeat_s=0.4, self_fence_margin_s=0.3, membership_poll_s=0.1, drain_timeout_s=DRAIN)
app = Coordinator(settings=settings)
other = 42

@app.subscribe("orders", group="billing", ordering="none", max_attempts=20, retry=[0.0])
def handle(message):
    with Path("handled").open("a") as file:
        file.write(f"{os.getpid()} {message.offset}\\n")
    match message.value:
        case "die" if message.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        case "sleep":
            time.sleep(600)
        case "stop":
            app.stop()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.fixture
def app(dsn: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An application in the current folder, its topic, and its database in the environment."""
    monkeypatch.setenv("COORDINATOR_DSN", dsn)
    (folder / "service.py").write_text(APPLICATION.replace("DRAIN", "20"))
    with Coordinator(dsn) as made:
        made.create_topic("orders", 4)
        yield made


@pytest.fixture
def console() -> Any:
    """Start the command as its script does: without the current folder on sys.path."""
    started: list[subprocess.Popen[str]] = []

    def popen(*arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", "from coordinator.cli.main import main; main()", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield popen
    for process in started:
        process.kill()
        process.communicate()


def until(condition: Callable[[], Any]) -> Any:
    limit_s = time.monotonic() + LIMIT_S
    while not (found := condition()):
        assert time.monotonic() < limit_s
        time.sleep(0.02)
    return found


def handled() -> list[tuple[int, int]]:
    path = Path("handled")
    if not path.exists():
        return []
    return [(int(pid), int(offset)) for pid, offset in (line.split() for line in path.read_text().splitlines())]


def members(dsn: str, count: int) -> list[int]:
    """Wait until the group has so many members that own something; return their processes."""

    def found() -> list[int]:
        with psycopg.connect(dsn) as connection:
            rows = connection.execute("select m.pid from coordinator.group_members m where m.partitions > 0").fetchall()
        return [pid for (pid,) in rows] if len(rows) == count else []

    return until(found)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie whose parent has not looked yet counts as gone.
    return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text() if Path(f"/proc/{pid}").exists() else True


# ---- what is imported


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("service", "found 'service', wanted MODULE:APP, such as shop.workers:app"),
        (":app", "found ':app', wanted MODULE:APP"),
        ("nothing.here:app", "found no module 'nothing' in "),
        ("service:ap", "service has no 'ap', wanted MODULE:APP"),
        ("service:app.inner.more", "service:app has no 'inner', wanted"),
        ("service:other", "service:other is a builtins.int, wanted MODULE:APP"),
        ("broken:app", "importing broken failed: ZeroDivisionError: division by zero"),
        ("lacking:app", "importing lacking failed: ModuleNotFoundError: No module named 'no_such_thing'"),
        ("empty:app", "nothing is subscribed"),
    ],
)
def test_target__that_is_none__is_told_with_what_was_found(
    target: str, text: str, app: Coordinator, call: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "broken.py").write_text("\n1 / 0\n")
    (folder / "lacking.py").write_text("import no_such_thing\n")
    (folder / "empty.py").write_text("from coordinator import Coordinator\napp = Coordinator()\n")
    for name in ("service", "broken", "lacking", "empty"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    ended = call("run", target)
    assert (ended.code, ended.out) == (2, b"")
    assert text in ended.err
    if target.startswith("service:"):
        assert "found in service: app" in ended.err
    if target == "broken:app":
        assert f"{folder}/broken.py, line 2" in ended.err


def test_run__unknown_topic__is_a_usage_error_of_all_processes(
    dsn: str, app: Coordinator, console: Any, folder: Path
) -> None:
    (folder / "service.py").write_text(APPLICATION.replace("DRAIN", "20").replace('"orders"', '"refunds"'))
    for arguments in ([], ["--processes", 2]):
        process = console("run", "service:app", *arguments)
        _, err = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 2, err
        assert "there is no topic 'refunds'" in err


# ---- one process


def test_run__stopped_from_inside__ends_with_0(app: Coordinator, console: Any) -> None:
    app.publish("orders", "stop")
    process = console("run", "service:app")
    _, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, len(handled())) == (0, 1), err


def test_run__sigterm__finishes_and_ends_with_0(dsn: str, app: Coordinator, console: Any) -> None:
    process = console("run", "service:app")
    assert members(dsn, 1) == [process.pid]
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err


def test_run__asyncio_application__does_the_same(dsn: str, app: Coordinator, console: Any, folder: Path) -> None:
    (folder / "service.py").write_text(
        "from pathlib import Path\n"
        "from coordinator import AsyncCoordinator\n"
        "app = AsyncCoordinator()\n"
        "@app.subscribe('orders', group='billing')\n"
        "async def handle(message):\n"
        "    with Path('handled').open('a') as file:\n"
        "        file.write(f'1 {message.offset}\\n')\n"
    )
    app.publish("orders", 1)
    process = console("run", "service:app")
    until(handled)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    assert sum(offset.lag for offset in app.group_offsets("billing")) == 0


def test_run__handler_does_not_end__second_signal_gives_it_back_with_1(app: Coordinator, console: Any) -> None:
    app.publish("orders", "sleep")
    process = console("run", "service:app")
    until(handled)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=10)
    assert process.returncode == 1
    (offset,) = app.group_offsets("billing")[:1]
    assert offset.member_id is None


def test_run__dsn_and_schema_in_the_call__are_the_application_s(
    dsn: str, app: Coordinator, console: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COORDINATOR_DSN")
    app.publish("orders", "stop")
    process = console("run", "service:app", "--dsn", dsn, "--schema", "coordinator")
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err


# ---- several processes


def test_processes__sigterm__is_passed_on_and_all_end_with_0(dsn: str, app: Coordinator, console: Any) -> None:
    process = console("run", "service:app", "--processes", 2)
    pids = members(dsn, 2)
    assert process.pid not in pids
    app.publish_many("orders", list(range(100)))
    until(lambda: len(handled()) == 100)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    assert not any(map(is_running, pids))
    assert sum(offset.lag for offset in app.group_offsets("billing")) == 0


def test_processes__one_crashes__is_started_again(dsn: str, app: Coordinator, console: Any) -> None:
    process = console("run", "service:app", "--processes", 2)
    before = members(dsn, 2)
    app.publish("orders", "die", partition=0)
    until(lambda: not all(map(is_running, before)))
    until(lambda: set(members(dsn, 2)) - set(before))
    until(lambda: len(handled()) == 2)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    assert "was ended by SIGKILL; it is started again in 1 s" in err


def test_processes__handler_does_not_end__second_signal_ends_sooner_with_1(
    dsn: str, app: Coordinator, console: Any
) -> None:
    process = console("run", "service:app", "--processes", 2)
    members(dsn, 2)
    app.publish("orders", "sleep")
    until(handled)
    process.send_signal(signal.SIGINT)
    time.sleep(1)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert process.returncode == 1, err


def test_processes__all_stopped_from_inside__end_with_0(dsn: str, app: Coordinator, console: Any) -> None:
    process = console("run", "service:app", "--processes", 2, "--log-level", "warning")
    members(dsn, 2)
    limit_s = time.monotonic() + LIMIT_S
    while process.poll() is None:
        assert time.monotonic() < limit_s
        for partition in range(4):
            app.publish("orders", "stop", partition=partition)
        time.sleep(0.5)
    assert process.communicate()[1] == ""
    assert process.returncode == 0


def test_processes__parent_is_killed__children_end(dsn: str, app: Coordinator, console: Any) -> None:
    process = console("run", "service:app", "--processes", 2)
    pids = members(dsn, 2)
    process.kill()
    process.wait()
    until(lambda: not any(map(is_running, pids)))
    assert sum(offset.member_id is not None for offset in app.group_offsets("billing")) == 0


def test_processes__sigterm_before_they_are_up__end_with_0(app: Coordinator, console: Any) -> None:
    process = console("run", "service:app", "--processes", 3)

    def children() -> bool:
        return bool(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())

    until(children)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err


def test_pause__crash_after_crash__doubles_up_to_its_cap() -> None:
    from coordinator.cli.supervisor import _Place, _Supervisor

    supervisor = _Supervisor([], 0, 1, lambda _number: [])
    place = _Place(1)
    pauses = []
    for _ in range(7):
        supervisor._crashed(place, 1, now_s=10.0)
        pauses.append(place.start_at_s - 10.0)
    assert pauses == [1, 2, 4, 8, 16, 30, 30]
    place.started_s = 10.0
    supervisor._crashed(place, 1, now_s=70.0)
    assert place.start_at_s == 71.0, "who has run for a minute begins again with the shortest pause"
