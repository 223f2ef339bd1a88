"""Options for log lines, of the commands that run for long."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from coordinator.cli.commands import Options

F = TypeVar("F", bound=Callable[..., Any])

# As in observe/logs.py, which --help does without.
_FORMATS = ("text", "json")
_LEVELS = ("debug", "info", "warning", "error")


def log_options(default_level: str) -> Callable[[F], F]:
    """Add --log-format and --log-level, which reach the command by its Options alone."""

    def decorate(command: F) -> F:
        command = _option("--log-level", _LEVELS, f"Which events are told.  [default: {default_level}]")(command)
        return _option("--log-format", _FORMATS, "Lines for people, or one JSON object a line.  [default: text]")(
            command
        )

    return decorate


def _option(name: str, choices: tuple[str, ...], text: str) -> Callable[[F], F]:
    return click.option(name, type=click.Choice(choices), expose_value=False, is_eager=True, callback=_store, help=text)


def _store(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None:
        assert parameter.name is not None
        setattr(ctx.ensure_object(Options), parameter.name, value)
    return value
