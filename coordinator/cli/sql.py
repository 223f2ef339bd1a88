"""`coordinator sql`."""

import json
from typing import Any

import click

from coordinator.cli import output
from coordinator.cli.commands import Group, Options, pass_options


@click.group(cls=Group)
def sql() -> None:
    """Show the views and ready queries; run one of them."""


@sql.command(examples=("coordinator sql views", "coordinator sql views --columns", "coordinator sql views --json"))
@click.option("--columns", is_flag=True, help="Show the columns, too.")
@pass_options
def views(options: Options, *, columns: bool) -> None:
    """List the views of the schema, which people and tools may read; docs/sql.md describes each column."""
    from coordinator.db import queries  # noqa: PLC0415 - heavy

    with options.connected() as (connection, schema):
        found = queries.views(connection, schema)
    if options.as_json:
        output.json_object(
            {"views": [{"view": view.name, "summary": view.summary, "columns": dict(view.columns)} for view in found]}
        )
    elif columns:
        output.table(
            ("VIEW", "COLUMN", "TYPE"), [(view.name, name, kind) for view in found for name, kind in view.columns]
        )
    else:
        output.table(("VIEW", "WHAT"), [(view.name, view.summary) for view in found])


@sql.command(
    examples=(
        "coordinator sql query",
        "coordinator sql query who-is-behind",
        "coordinator sql query rates --json | jq -r .group",
        "coordinator sql query who-blocks --print | psql",
        "coordinator sql query in-flight --watch 2",
    )
)
@click.argument("name", required=False)
@click.option("--print", "print_text", is_flag=True, help="Print its text, with the schema's name put in; run nothing.")
@output.watch_option
@pass_options
def query(options: Options, *, name: str | None, print_text: bool, watch_s: float | None) -> None:
    """Run a ready query; without a name list them. With --json one object a line."""
    from coordinator.db import queries  # noqa: PLC0415 - heavy

    if name is None:
        _list(options)
        return
    found = queries.query(name)
    if print_text:
        from coordinator.protocol.placeholder import render  # noqa: PLC0415

        output.line(render(found.text, options.schema_name()).rstrip("\n"))
        return
    with options.connected() as (connection, schema):

        def show() -> None:
            columns, rows = queries.run(connection, schema, found)
            if options.as_json:
                for row in rows:
                    output.json_object(dict(zip(columns, row, strict=True)))
            else:
                output.table(
                    [name.upper().replace("_", "-") for name in columns], [tuple(map(_cell, row)) for row in rows]
                )

        output.watch(show, watch_s)


def _list(options: Options) -> None:
    from coordinator.db import queries  # noqa: PLC0415 - heavy

    if options.as_json:
        output.json_object(
            {"queries": [{"query": found.name, "summary": found.summary} for found in queries.queries()]}
        )
    else:
        output.table(("QUERY", "WHAT"), [(found.name, found.summary) for found in queries.queries()])


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False, default=output.plain) if isinstance(value, dict) else value
