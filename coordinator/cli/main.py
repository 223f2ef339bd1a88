"""The command `coordinator`: options that all commands share, the list of commands, and how a call ends."""

import io
import os
import sys
from pathlib import Path
from typing import Any

import click

from coordinator import __version__
from coordinator.cli import exits
from coordinator.cli.commands import Lazy, LazyGroup, Options
from coordinator.cli.failures import told, unwritten

COMMANDS = {
    "topics": Lazy("coordinator.cli.topics:topics", "Make, list, alter and delete topics; rotate their segments."),
    "messages": Lazy("coordinator.cli.messages:messages", "Publish, consume and look at messages."),
    "groups": Lazy("coordinator.cli.groups:groups", "List consumer groups; show, pause, move and delete them."),
    "lag": Lazy("coordinator.cli.lag:lag", "Show how far groups are behind; exit 1 past a threshold."),
    "scheduled": Lazy("coordinator.cli.scheduled:scheduled", "List messages that wait for their time; cancel them."),
    "dlq": Lazy("coordinator.cli.dlq:dlq", "List, show, replay, export and purge dead letters."),
    "run": Lazy("coordinator.cli.run:run", "Run the handlers of an application, in one process or several."),
    "members": Lazy("coordinator.cli.members:members", "List consumer processes; drain or evict one."),
    "db": Lazy("coordinator.cli.db:db", "Install, upgrade and downgrade the schema."),
    "doctor": Lazy("coordinator.cli.doctor:doctor", "Look for what is wrong, and say what to do."),
    "sql": Lazy("coordinator.cli.sql:sql", "Show the views and ready queries; run one of them."),
    "config": Lazy("coordinator.cli.config:config", "Show the settings in force and where each came from."),
    "maintain": Lazy("coordinator.cli.maintain:maintain", "Publish scheduled messages when they are due."),
    "serve": Lazy("coordinator.cli.serve:serve", "Serve metrics, health and a dashboard; do the maintenance."),
    "health": Lazy("coordinator.cli.health:health", "Say whether all is well, and what is not."),
    "metrics": Lazy("coordinator.cli.metrics:metrics", "Print metrics, alert rules and a Grafana dashboard."),
    "bench": Lazy("coordinator.cli.bench:bench", "Measure what this database can do."),
    "demo": Lazy("coordinator.cli.demo.command:demo", "See the product at work."),
}


class Root(LazyGroup):
    """The outermost group: whatever goes wrong below is told here."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        try:
            return super().make_context(*args, **extra)
        except OSError as error:  # --help or --version, and nobody takes it
            raise click.exceptions.Exit(unwritten(error)) from error

    def invoke(self, ctx: click.Context) -> Any:
        options = ctx.ensure_object(Options)
        with told(ctx, options):
            return super().invoke(ctx)


def _show_version(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    click.echo(f"coordinator {__version__}")
    ctx.exit()


@click.command(
    cls=Root,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    examples=(
        "coordinator --embedded demo",
        "export COORDINATOR_DSN=postgresql://app@localhost/shop",
        "coordinator db upgrade",
        "coordinator topics create orders --partitions 12",
        "coordinator messages publish orders orders.jsonl --key-field customer",
        "coordinator messages consume orders --group billing",
        "coordinator groups describe billing --json",
    ),
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_show_version,
    help="Show the version and exit.",
)
def cli() -> None:
    """A message log with consumer groups, kept in PostgreSQL.

    The options below may also stand after the name of a command.
    """


def main() -> None:
    """Run the command of this process."""
    if sys.stdin is None:
        # Started with <&-, as with </dev/null. This takes the number that is free, before a socket does.
        sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115 - for as long as the process lives
    if sys.stdout is None:
        # Started with >&-: what we print would go nowhere, and messages would be acked that nobody has seen.
        sys.exit(exits.FAILED)
    if sys.stderr is None:
        # Who does not want to be told anything still gets the exit code.
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A locale that cannot show a character must not end a command.
            stream.reconfigure(errors="backslashreplace")
    cli(prog_name="coordinator")
