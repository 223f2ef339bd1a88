"""docs/sql.md runs as it stands, and says of functions and views what the catalogue says."""

import re
from pathlib import Path

import psycopg
import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "sql.md").read_text("utf-8")
_SECTION = re.compile(r"^### `(\w+)`\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
_ROW = re.compile(r"^\| `(\w+)` \| ([^|]+?) \|", re.MULTILINE)


def tables(kind: str) -> dict[str, list[tuple[str, str]]]:
    """Return names and types of the first table of each section whose first column is called `kind`."""
    found = {}
    for name, body in _SECTION.findall(PAGE):
        _, head, table = body.partition(f"| {kind} | type |")
        if head:
            found[name] = _ROW.findall(table.split("\n\n")[0])
    return found


@pytest.fixture
def connection(dsn):
    with psycopg.connect(dsn, autocommit=True) as made:
        yield made


def test_sql_blocks__run_in_their_order__succeed(connection):
    # Roles are the server's, not the database's: the page's role must not stay behind.
    connection.execute("drop role if exists shop_service")
    try:
        for block in re.findall(r"^```sql\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
            for statement in re.split(r";[ ]*\n", block):
                if statement.strip():
                    connection.execute(statement)
        found = connection.execute("select count(*) from coordinator.offsets").fetchone()
        assert found == (12,)
    finally:
        connection.execute("rollback") if connection.info.transaction_status else None
        connection.execute("drop owned by shop_service")
        connection.execute("drop role shop_service")


@pytest.mark.parametrize("name", tables("column"))
def test_view__columns_of_the_page__are_those_of_the_catalogue(name, connection):
    rows = connection.execute(
        "select a.attname, format_type(a.atttypid, a.atttypmod) from pg_attribute a "
        "where a.attrelid = to_regclass('coordinator.' || %s) and a.attnum > 0 order by a.attnum",
        (name,),
    ).fetchall()
    assert rows == tables("column")[name]


@pytest.mark.parametrize("name", tables("parameter"))
def test_function__parameters_of_the_page__are_those_of_the_catalogue(name, connection):
    rows = connection.execute(
        "select p.proargnames[u.n], format_type(u.t, null) from pg_proc p, unnest(p.proargtypes) with ordinality as u(t, n) "
        "where p.pronamespace = 'coordinator'::regnamespace and p.proname = %s order by u.n",
        (name,),
    ).fetchall()
    assert rows == tables("parameter")[name]


def test_views_and_functions__all_of_the_schema__are_described(connection):
    described = PAGE + (ROOT / "sql" / "README.md").read_text("utf-8")
    names = connection.execute(
        "select c.relname from pg_class c where c.relnamespace = 'coordinator'::regnamespace and c.relkind = 'v' "
        "union select p.proname from pg_proc p where p.pronamespace = 'coordinator'::regnamespace"
    ).fetchall()
    assert [name for (name,) in names if f"`{name}`" not in described] == []
