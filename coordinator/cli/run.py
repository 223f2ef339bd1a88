"""`coordinator run`: the handlers of an application, in this process or in several that it looks after."""

import importlib
import inspect
import logging
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from coordinator.cli.commands import Command, Options, pass_options
from coordinator.cli.log_options import log_options
from coordinator.configuration import CONFIG_VARIABLE
from coordinator.errors import ConfigError
from coordinator.settings import DSN_VARIABLES, SCHEMA_VARIABLE

if TYPE_CHECKING:
    from coordinator.app import Coordinator
    from coordinator.async_app import AsyncCoordinator
    from coordinator.settings import Settings

_WANTED = "wanted MODULE:APP, such as shop.workers:app, where APP is a Coordinator or AsyncCoordinator"
_MAX_PROCESSES = 256


@click.command(
    cls=Command,
    examples=(
        "coordinator run shop.workers:app",
        "coordinator run shop.workers:app --processes 4",
    ),
)
@click.argument("target", metavar="MODULE:APP")
@click.option(
    "--processes",
    type=click.IntRange(1, _MAX_PROCESSES),
    default=1,
    show_default=True,
    help="How many processes; one that crashes is started again.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="Serve metrics and health there; with several processes the second takes the next port, and so on; 0: any free ones.",
)
@click.option("--metrics-host", help="The address for it; 127.0.0.1 unless the application says another.")
@click.option("--process", type=int, hidden=True, help="Which of several this one is, at every start.")
@click.option("--lifeline", type=int, hidden=True, help="A pipe whose end tells that the parent has gone.")
@log_options("info")
@pass_options
@click.pass_context
def run(
    ctx: click.Context,
    options: Options,
    target: str,
    *,
    processes: int,
    metrics_port: int | None,
    metrics_host: str | None,
    process: int | None,
    lifeline: int | None,
) -> None:
    """Run the handlers that an application has subscribed, until SIGTERM or Ctrl-C.

    MODULE is imported with the current folder first on its path; APP is a name in it, dots allowed. --dsn and --schema are
    for an application that names no database itself.

    The first signal lets handlers finish what they have (drain_timeout_s), a second one gives it back at once. With several
    processes signals are passed on, and a process that crashes is started again, after a pause that doubles up to 30 s. If
    the application has a static id, the first process adds -1 to it, the second -2.

    Exit code 0 if everything was finished, 1 if something was left and given back.
    """
    _into_environment(options)
    if processes > 1:
        from coordinator.cli.supervisor import supervise  # noqa: PLC0415 - one process does without

        ctx.exit(supervise(_command(options, target, metrics_host), processes, _port_options(metrics_port)))
    app = loaded(target)
    if process is not None and app.static_id is not None:
        app.static_id = f"{app.static_id}-{process}"
    _show_events(options)
    if metrics_port is not None or metrics_host is not None:
        app.settings = _with_port(app.settings, metrics_port, metrics_host)
    if lifeline is not None:
        from coordinator.cli.supervisor import end_with_parent  # noqa: PLC0415

        end_with_parent(lifeline)
    ctx.exit(_run(app))


def loaded(target: str) -> "Coordinator | AsyncCoordinator":
    """Import the module and return the application in it.

    Raises:
        ConfigError: Says what was found and what was wanted.
    """
    module_name, colon, path = target.partition(":")
    if not (module_name and colon and path):
        raise ConfigError(f"found {target!r}, {_WANTED}")
    if os.getcwd() not in sys.path:  # noqa: PTH109 - sys.path holds texts
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    found: Any = _imported(module_name)
    module = found
    for index, name in enumerate(path.split(".")):
        if not hasattr(found, name):
            where = ":".join(filter(None, (module_name, ".".join(path.split(".")[:index]))))
            raise ConfigError(f"{where} has no {name!r}, {_WANTED}", detail=_applications(module))
        found = getattr(found, name)
    if not _is_application(found):
        raise ConfigError(
            f"{target} is a {type(found).__module__}.{type(found).__qualname__}, {_WANTED}",
            detail=_applications(module),
        )
    application: Coordinator | AsyncCoordinator = found
    return application


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # The module itself, or a package that it is in; what it imports in turn is told as any error in it.
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise ConfigError(
                f"found no module {error.name!r} in {os.getcwd()} or among the installed packages, {_WANTED}"  # noqa: PTH109
            ) from error
        raise _broken(name, error) from error
    except Exception as error:
        raise _broken(name, error) from error


def _broken(name: str, error: Exception) -> ConfigError:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return ConfigError(
        f"importing {name} failed: {type(error).__name__}: {error}",
        detail=f"at {last.filename}, line {last.lineno}",
        hint="--verbose shows the whole traceback",
    )


def _applications(module: Any) -> str:
    names = [name for name, value in vars(module).items() if _is_application(value)]
    return f"found in {module.__name__}: {', '.join(names) if names else 'no application'}"


def _is_application(value: object) -> bool:
    from coordinator.app import Coordinator  # noqa: PLC0415 - psycopg, which --help does without
    from coordinator.async_app import AsyncCoordinator  # noqa: PLC0415

    return isinstance(value, Coordinator | AsyncCoordinator)


def _run(app: Any) -> int:
    result = app.run()
    if inspect.isawaitable(result):
        import asyncio  # noqa: PLC0415 - threads do without, and --help

        result = asyncio.run(_awaited(app, result))
    else:
        app.close()
    return int(result or 0)


async def _awaited(app: Any, running: Any) -> int:
    try:
        return int(await running or 0)
    finally:
        await app.close()


def _show_events(options: Options) -> None:
    """Show events, unless the application has said itself where its logs go, and the call does not."""
    asked = options.verbose or options.log_format is not None or options.log_level is not None
    if asked or not (logging.getLogger().handlers or logging.getLogger("coordinator").handlers):
        from coordinator.cli.events import show_events  # noqa: PLC0415

        show_events(verbose=options.verbose, log_format=options.log_format, log_level=options.log_level or "info")


def _with_port(settings: "Settings", port: int | None, host: str | None) -> "Settings":
    named: dict[str, Any] = {"metrics_port": port, "metrics_host": host}
    return replace(settings, **{name: value for name, value in named.items() if value is not None})


def _port_options(port: int | None) -> Callable[[int], list[str]]:
    """Return what a child is told of its port, by its number from 1."""
    if port is None:
        return lambda _number: []
    return lambda number: ["--metrics-port", str(port + number - 1 if port else 0)]


def _into_environment(options: Options) -> None:
    """Let the application, and children, find the database that was named in the call."""
    address = options.address()
    if address is not None:
        os.environ[DSN_VARIABLES[0]] = address
    if options.schema is not None:
        os.environ[SCHEMA_VARIABLE] = options.schema
    if options.config is not None:
        os.environ[CONFIG_VARIABLE] = options.config


def _command(options: Options, target: str, metrics_host: str | None) -> list[str]:
    command = [sys.executable, "-m", "coordinator.cli", "run", target, *(["--verbose"] if options.verbose else [])]
    for name, value in (
        ("--log-format", options.log_format),
        ("--log-level", options.log_level),
        ("--metrics-host", metrics_host),
    ):
        command += [] if value is None else [name, value]
    return command
