"""`coordinator config`."""

from dataclasses import asdict

import click

from coordinator.cli import exits, output
from coordinator.cli.commands import Group, Options, pass_options
from coordinator.errors import ConfigError

# What libpq keeps secret in a conninfo; sslkey is the name of a file.
_SECRETS = frozenset({"password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"})
_MASK = "********"


@click.group(cls=Group)
def config() -> None:
    """Show the settings in force and where each came from."""


@config.command(examples=("coordinator config show", "coordinator config show --dsn postgresql://me@db/shop --json"))
@pass_options
@click.pass_context
def show(ctx: click.Context, options: Options) -> None:
    """Show every setting, its value and its source, without connecting; passwords are masked.

    Exit code 1 where no database is named.
    """
    from coordinator.settings import Settings, find_dsn, find_schema  # noqa: PLC0415 - other commands do without

    rows: list[tuple[str, object, str]] = []
    missing: ConfigError | None = None
    try:
        dsn = find_dsn(options.address())
    except ConfigError as error:
        missing = error
        rows.append(("dsn", None, "missing"))
    else:
        rows.append(("dsn", masked(dsn.value), _source(dsn.source, "--embedded" if options.embedded else "--dsn")))
    schema = find_schema(options.schema)
    rows.append(("schema", schema.value, _source(schema.source, "--schema")))
    rows.extend((name, value, "default") for name, value in asdict(Settings()).items())
    if options.as_json:
        output.json_object({"settings": {name: {"value": value, "source": source} for name, value, source in rows}})
    else:
        output.table(
            ("SETTING", "VALUE", "SOURCE"), [(name, output.cell(value), source) for name, value, source in rows]
        )
    if missing is not None:
        output.note(str(missing))
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


def _source(found: str, option: str) -> str:
    return option if found == "argument" else found
