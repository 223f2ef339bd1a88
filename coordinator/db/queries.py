"""Ready queries and views, as the package carries them: listed, printed and run."""

from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any

import psycopg
from psycopg.types.multirange import Multirange
from psycopg.types.range import Range

from coordinator.db.schema import sql_dir
from coordinator.db.translate import translated
from coordinator.errors import NotFoundError
from coordinator.protocol.placeholder import render


@dataclass(frozen=True, slots=True)
class Query:
    """A ready query; `text` says coordinator for the schema."""

    name: str
    summary: str
    text: str


@dataclass(frozen=True, slots=True)
class View:
    """A view with the columns that it has in this database."""

    name: str
    summary: str
    columns: tuple[tuple[str, str], ...]


def queries() -> list[Query]:
    """All ready queries by name."""
    found = []
    for path in sorted((sql_dir() / "queries").glob("*.sql")):
        comment, _, text = path.read_text("utf-8").partition("\n")
        found.append(Query(path.stem, comment.removeprefix("-- "), text))
    return found


def query(name: str) -> Query:
    """One of them. Raises: NotFoundError, which lists the names."""
    known = queries()
    for found in known:
        if found.name == name:
            return found
    raise NotFoundError(f"there is no query {name!r}; there are {', '.join(found.name for found in known)}")


def run(
    connection: psycopg.Connection[Any], schema: str, found: Query
) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """Return the names of the columns and the rows, with values that JSON has a form for."""
    with translated(connection):
        cursor = connection.execute(render(found.text, schema))
        assert cursor.description is not None
        names = tuple(column.name for column in cursor.description)
        return names, [tuple(map(_plain, row)) for row in cursor.fetchall()]


def views(connection: psycopg.Connection[Any], schema: str) -> list[View]:
    """The views of an installation, with what their files say of them."""
    summaries = {}
    for path in (sql_dir() / "views").glob("*.sql"):
        text = path.read_text("utf-8")
        comment = " ".join(line.removeprefix("--").strip() for line in text.split("create ")[0].splitlines())
        summaries[text.partition("view coordinator.")[2].split()[0]] = comment
    with translated(connection):
        rows = connection.execute(
            "select c.relname::text, array_agg(array[a.attname::text, format_type(a.atttypid, a.atttypmod)] "
            "order by a.attnum) from pg_catalog.pg_class c join pg_catalog.pg_attribute a on a.attrelid = c.oid "
            "where c.relnamespace = to_regnamespace(%s) and c.relkind = 'v' and a.attnum > 0 group by 1 order by 1",
            (f'"{schema}"',),
        ).fetchall()
    return [
        View(name, summaries.get(name, ""), tuple((column, kind) for column, kind in columns)) for name, columns in rows
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Range | Multirange):
        return str(value)
    if isinstance(value, bytes | memoryview):
        return bytes(value).hex()
    return value
