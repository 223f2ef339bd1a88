"""What the command does before it does anything."""

import subprocess
import sys
import time
from typing import Any

import click
import pytest

from coordinator.cli.main import COMMANDS, cli

HEAVY = ("psycopg", "sqlalchemy", "alembic", "rich", "asyncio")


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_start__version_or_help__is_quick_and_says_it(run: Any, option: str) -> None:
    durations_s = [float("inf")]
    # The best of them: a busy machine is no property of ours, and may be busy for a while.
    give_up_s = time.monotonic() + 60
    while min(durations_s) >= 0.3 and (len(durations_s) <= 5 or time.monotonic() < give_up_s):
        started_s = time.monotonic()
        ended = run(option)
        durations_s.append(time.monotonic() - started_s)
        assert ended.code == 0
        assert "coordinator" in ended.text
        assert ended.err == ""
    assert min(durations_s) < 0.3


def test_start__help_of_a_command__imports_nothing_heavy() -> None:
    code = (
        "import sys; from coordinator.cli.main import cli\n"
        "for name in ('topics', 'messages', 'groups', 'dlq', 'run', 'db', 'config'):\n"
        "    cli([name, '--help'], standalone_mode=False)\n"
        f"found = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "assert not found, found"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def commands() -> list[list[str]]:
    """Every command that does something, but for those of other packages of the command line."""
    found = []
    for name in COMMANDS:
        if name in ("bench", "demo"):
            continue
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        found += [[name, inner] for inner in command.commands] if isinstance(command, click.Group) else [[name]]
    return found


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_help__of_each_command__has_examples_that_call_it(call: Any, command: list[str]) -> None:
    ended = call(*command, "--help")
    assert ended.code == 0
    examples = ended.text.partition("Examples:\n")[2]
    assert f"coordinator {' '.join(command)}" in examples


@pytest.mark.parametrize("option", ["--dsn=postgresql://127.0.0.1:1/x", "--json", "--verbose", "--schema=other"])
def test_global_option__after_the_command__is_accepted(call: Any, option: str) -> None:
    # The name of the database is missing in all but one; what matters is that it is not a usage error of click.
    assert "No such option" not in call("config", "show", option).err


def test_command__unknown__is_a_usage_error(call: Any) -> None:
    ended = call("topix")
    assert ended.code == 2
    assert "topix" in ended.err
    assert ended.out == b""
