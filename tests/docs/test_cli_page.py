"""docs/cli.md is what the commands say, and the shells get their completion."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_page__is_made_of_the_commands_as_they_are():
    spec = importlib.util.spec_from_file_location("cli_page", ROOT / "scripts" / "cli_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text("utf-8") == module.page(), "run: PYTHONPATH=. python scripts/cli_page.py"


def complete(words, number):
    environment = {
        **os.environ,
        "_COORDINATOR_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(number),
        "PYTHONPATH": str(ROOT),
    }
    ended = subprocess.run(
        [sys.executable, "-m", "coordinator.cli"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.stderr == ""
    return [line.partition(",")[2] for line in ended.stdout.splitlines()]


@pytest.mark.parametrize(
    ("words", "number", "wanted"),
    [
        ("coordinator me", 1, {"messages", "members", "metrics"}),
        ("coordinator messages ", 2, {"publish", "consume", "peek", "show"}),
        ("coordinator lag --max", 2, {"--max-lag", "--max-age"}),
        ("coordinator metrics ", 2, {"print", "rules", "dashboard"}),
    ],
)
def test_completion__of_commands_and_options__is_answered(words, number, wanted):
    assert wanted & set(complete(words, number)) == set(complete(words, number)) & wanted
    assert wanted - set(complete(words, number)) <= {"members"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion__script_for_each_shell__names_the_command(shell):
    environment = {**os.environ, "_COORDINATOR_COMPLETE": f"{shell}_source", "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, "-m", "coordinator.cli"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "_COORDINATOR_COMPLETE" in ended.stdout
