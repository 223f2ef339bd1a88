"""`coordinator db`."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import click

from coordinator.cli import exits, output
from coordinator.cli.commands import Group, Options, pass_options


@click.group(cls=Group)
def db() -> None:
    """Install, upgrade, repair and remove the schema; grant roles what they need."""


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


@db.command(
    examples=(
        "coordinator db grants --role publisher --to shop_service",
        "coordinator db grants --role consumer --to shop_service --execute",
    )
)
@click.option(
    "--role",
    "kind",
    type=click.Choice(("publisher", "consumer", "operator", "reader")),
    required=True,
    help="What it may do; several are granted one after the other.",
)
@click.option("--to", "role", metavar="ROLE", required=True, help="The role in the database; it must exist.")
@click.option("--execute", is_flag=True, help="Run the statements, as the owner of the schema; else they are printed.")
@pass_options
def grants(options: Options, *, kind: str, role: str, execute: bool) -> None:
    """Give a role what it needs, and no more.

    The first statement takes away what everybody has: without it whoever may use the schema may call every function. So
    grant all your services their roles before, or along with, the first one. What was executed is done again by upgrades.
    """
    from coordinator.db import schema  # noqa: PLC0415 - heavy

    with options.server() as dsn:
        statements = schema.grants(dsn, options.schema_name(), kind, role, execute=execute)
    if options.as_json:
        output.json_object({"role": role, "kind": kind, "executed": execute, "statements": statements})
    elif execute:
        output.note("whoever was granted nothing may call nothing: the right of everybody has been taken away")
        article = "an" if kind == "operator" else "a"
        output.line(f"role {role} is {article} {kind} now, by {output.counted(len(statements), 'statement')}")
    else:
        for statement in statements:
            output.line(f"{statement};")


@db.command(examples=("coordinator db repair-sequences", "coordinator db repair-sequences --execute"))
@click.option("--execute", is_flag=True, help="Set them; else what is behind is listed.")
@pass_options
@click.pass_context
def repair_sequences(ctx: click.Context, options: Options, *, execute: bool) -> None:
    """Set sequences that are behind their messages, or ahead of the last segment: after a restore that did not carry them.

    Stop publishers and consumers before. Exit code 1 if something is wrong and --execute was not given.
    """
    from coordinator.db import schema  # noqa: PLC0415 - heavy

    with options.server() as dsn:
        found = schema.repair_sequences(dsn, options.schema_name(), execute=execute)
    if options.as_json:
        output.json_object({"executed": execute, "sequences": [one._asdict() for one in found]})
    else:
        output.table(("SEQUENCE", "VALUE", "WANTED"), [tuple(one) for one in found])
        if not found:
            output.note("no sequence is behind")
    if found and not execute:
        ctx.exit(exits.FINDING)


@db.command(examples=("coordinator db uninstall", "coordinator db uninstall --yes"))
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_options
def uninstall(options: Options, *, yes: bool) -> None:
    """Drop the schema with all that is in it, messages included, and what elsewhere depends on it. Stop every service before."""
    from coordinator.db import schema  # noqa: PLC0415 - heavy

    name = options.schema_name()
    with options.server() as dsn:
        if not yes:
            _confirm(f"drop schema {name}")
        schema.uninstall(dsn, name)
    if options.as_json:
        output.json_object({"schema": name, "uninstalled": True})
    else:
        output.line(f"schema {name} is gone")


@db.command(examples=("coordinator db sql > install.sql", "coordinator db sql --from 0003 | psql -v ON_ERROR_STOP=1"))
@click.option("--from", "start", default="base", show_default=True, help="The revision that is installed.")
@click.option("--to", "end", default="head", show_default=True, help="The revision that is wanted.")
@pass_options
def sql(options: Options, *, start: str, end: str) -> None:
    """Print the SQL of an installation or upgrade, for somebody else to run; needs no database.

    It is one transaction; run it as the role that is to own the schema, and stop at the first error. Roles that were granted
    something before an upgrade are granted it anew at its end.
    """
    from coordinator.db import schema  # noqa: PLC0415 - heavy

    output.line(schema.script(options.schema_name(), start, end))


@db.command(
    examples=(
        "coordinator db psql --embedded",
        "coordinator db psql --embedded -- -c 'select * from coordinator.group_list'",
    )
)
@click.argument("arguments", nargs=-1)
@pass_options
@click.pass_context
def psql(ctx: click.Context, options: Options, arguments: tuple[str, ...]) -> None:
    """Open psql on the database; an embedded server runs until it ends. What stands behind -- is for psql.

    psql is that of PATH, else the one beside the embedded server's binaries. The exit code is psql's, once the database
    was reached.
    """
    from coordinator.db.connect import connect  # noqa: PLC0415 - heavy
    from coordinator.db.dsn import conninfo  # noqa: PLC0415 - heavy

    for argument in arguments:
        if "\0" in argument or any("\ud800" <= character <= "\udfff" for character in argument):
            raise click.UsageError(f"found the argument {argument!r}, wanted UTF-8 without NUL")
    with options.server() as dsn:
        # First by ourselves: psql's exit code 2 for a database that is away is our code for a wrong call.
        connect(dsn, 10.0, "coordinator cli", prepare=False).close()
        program = shutil.which("psql") or str(find_psql())
        # At its prompt Ctrl-C is psql's, which has a handler of its own.
        before = signal.signal(signal.SIGINT, lambda *_: None)
        try:
            code = subprocess.call([program, conninfo(dsn), *arguments])
        finally:
            signal.signal(signal.SIGINT, before)
    ctx.exit(code)


def find_psql() -> Path:
    """Return the psql beside the binaries of the embedded server. Raises: UsageError, if there is none."""
    from coordinator.embedded import find_binaries  # noqa: PLC0415 - only for who asks for it

    found = find_binaries() / "psql"
    if not found.exists():
        raise click.UsageError(f"there is no psql on PATH, and none in {found.parent}")
    return found


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
