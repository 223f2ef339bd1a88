"""`coordinator db`."""

import sys

import click

from coordinator.cli import exits, output
from coordinator.cli.commands import Group, Options, pass_options


@click.group(cls=Group)
def db() -> None:
    """Install, upgrade and downgrade the schema."""


@db.command(
    examples=(
        "coordinator db upgrade",
        "coordinator db upgrade --dsn postgresql://owner@localhost/shop --schema shop_log",
    )
)
@click.option("--revision", default="head", show_default=True, help="Stop at this one.")
@pass_options
def upgrade(options: Options, *, revision: str) -> None:
    """Install the schema, or bring it to the newest revision.

    One transaction; several processes may do it at once. Where it is up to date already, nothing happens.
    """
    from coordinator.db import schema  # noqa: PLC0415 - heavy

    name = options.schema_name()
    with options.server() as dsn:
        before = schema.current(dsn, name)
        schema.upgrade(dsn, name, revision)
        after = schema.current(dsn, name)
    _tell(options, name, before, after)


@db.command(examples=("coordinator db downgrade 0001", "coordinator db downgrade base --yes"))
@click.argument("revision")
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_options
def downgrade(options: Options, revision: str, *, yes: bool) -> None:
    """Take the schema back to a revision; "base" drops all that is in it, messages included."""
    from coordinator.db import schema  # noqa: PLC0415 - heavy

    name = options.schema_name()
    with options.server() as dsn:
        before = schema.current(dsn, name)
        if not yes:
            _confirm(f"take schema {name} from revision {before or 'none'} back to {revision}")
        schema.downgrade(dsn, name, revision)
        after = schema.current(dsn, name)
    _tell(options, name, before, after)


@db.command(examples=("coordinator db current", "coordinator db current --json"))
@pass_options
@click.pass_context
def current(ctx: click.Context, options: Options) -> None:
    """Show the schema's revision; exit code 1 where there is none."""
    from coordinator.db import schema  # noqa: PLC0415 - heavy

    name = options.schema_name()
    with options.server() as dsn:
        revision = schema.current(dsn, name)
    if options.as_json:
        output.json_object({"schema": name, "revision": revision})
    else:
        output.table(("SCHEMA", "REVISION"), [(name, revision)])
    if revision is None:
        output.note(f"schema {name} has no revision; install it: coordinator db upgrade")
        ctx.exit(exits.FINDING)


def _confirm(what: str) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError(f"to {what} drops data, and nobody is there to be asked: add --yes")
    click.confirm(f"This will {what}, and drop data. Go on?", abort=True, err=True)


def _tell(options: Options, name: str, before: str | None, after: str | None) -> None:
    if options.as_json:
        output.json_object({"schema": name, "revision_before": before, "revision": after})
    elif before == after:
        output.line(f"schema {name} was at revision {after or 'none'} already")
    else:
        output.line(f"schema {name}: revision {before or 'none'} -> {after or 'none'}")
