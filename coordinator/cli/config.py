"""`coordinator config`."""

import click

from coordinator.cli import exits, output
from coordinator.cli.commands import Group, Options, pass_options
from coordinator.configuration import Problem
from coordinator.errors import ConfigError

# What libpq keeps secret in a conninfo; sslkey is the name of a file.
_SECRETS = frozenset({"password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"})
_MASK = "********"


@click.group(cls=Group)
def config() -> None:
    """Show the settings in force and where each came from."""


@config.command(
    examples=(
        "coordinator config show",
        "coordinator config show --config /etc/shop/coordinator.toml",
        "coordinator config show --dsn postgresql://me@db/shop --json",
    )
)
@pass_options
@click.pass_context
def show(ctx: click.Context, options: Options) -> None:
    """Show every setting, its value and its source, without connecting; passwords are masked.

    Of a wrong value the default is shown; `config check` tells what is wrong. Exit code 1 where no database is named, or a
    value is wrong.
    """
    found = options.configured()
    rows: list[tuple[str, object, str]] = [("dsn", None, "missing")] * ("dsn" not in found.values)
    for name, value in found.values.items():
        shown = masked(value.value) if name == "dsn" else value.value
        rows.append((name, shown, _source(options, name, value.source)))
    if options.as_json:
        output.json_object(
            {
                "file": None if found.path is None else str(found.path),
                "settings": {name: {"value": value, "source": source} for name, value, source in rows},
            }
        )
    else:
        output.table(
            ("SETTING", "VALUE", "SOURCE"), [(name, output.cell(value), source) for name, value, source in rows]
        )
    for problem in found.problems:
        output.note(problem.allowed if problem.source == "missing" else str(problem))
    if found.problems:
        ctx.exit(exits.FINDING)


@config.command(
    examples=("coordinator config check", "coordinator config check --config /etc/shop/coordinator.toml --json")
)
@pass_options
@click.pass_context
def check(ctx: click.Context, options: Options) -> None:
    """Name each value that is wrong: where it stands, what was found, what is allowed. Connects to nothing.

    Exit code 1 if there is one, or no database is named; 2 if the file cannot be read or is no TOML.
    """
    from coordinator.db.dsn import conninfo  # noqa: PLC0415 - heavy
    from coordinator.settings import EMBEDDED  # noqa: PLC0415

    found = options.configured()
    problems = list(found.problems)
    if "dsn" in found.values and not found.values["dsn"].value.startswith(EMBEDDED):
        try:
            conninfo(found.values["dsn"].value)
        except ConfigError as error:
            problems.append(Problem("dsn", found.values["dsn"].source, None, str(error)))
    rows = [(item.name, _source(options, item.name, item.source), item.found, item.allowed) for item in problems]
    if options.as_json:
        names = ("name", "source", "found", "allowed")
        output.json_object({"ok": not rows, "problems": [dict(zip(names, row, strict=True)) for row in rows]})
    elif rows:
        output.table(("NAME", "SOURCE", "FOUND", "ALLOWED"), rows)
    where = "no file" if found.path is None else str(found.path)
    output.note(f"{where}, {len(found.values)} values, {output.counted(len(rows), 'problem')}")
    if rows:
        ctx.exit(exits.FINDING)


def masked(dsn: str) -> str:
    """Return a DSN as conninfo pairs without its secrets; "" where libpq's own variables say it all.

    Raises:
        ConfigError: If libpq would not understand it.
    """
    from coordinator.db.dsn import conninfo  # noqa: PLC0415 - heavy
    from coordinator.settings import EMBEDDED  # noqa: PLC0415

    if dsn.startswith(EMBEDDED):
        return dsn
    # Only coordinator.db imports psycopg; here its parser alone, because a pattern for passwords in two notations with
    # two ways of quoting would miss some.
    from psycopg.conninfo import conninfo_to_dict, make_conninfo  # noqa: PLC0415

    parts = conninfo_to_dict(conninfo(dsn))
    return make_conninfo("", **{name: _MASK if name in _SECRETS else value for name, value in parts.items()})


def _source(options: Options, name: str, found: str) -> str:
    if found != "argument":
        return found
    return "--embedded" if name == "dsn" and options.embedded else f"--{name}"
