"""Empty databases, and what is in a schema as plain text."""

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from coordinator.db.dsn import conninfo
from coordinator.db.schema import VERSION_TABLE

Catalog = dict[str, list[tuple[Any, ...]]]

# What an object is, by name and never by oid. {s} is the schema. Alembic's table is no part of the product.
CATALOG_QUERIES = {
    "schema": "select n.nspacl::text, obj_description(n.oid) from pg_namespace n where n.oid = {s}",
    "default privileges": "select d.defaclobjtype, d.defaclacl::text from pg_default_acl d where d.defaclnamespace = {s}",
    "relations": """
        select c.relname, c.relkind, c.relpersistence, c.reloptions, c.relrowsecurity, c.relforcerowsecurity,
            c.relreplident, c.relispartition, pg_get_partkeydef(c.oid), c.relowner::regrole::text, c.relacl::text,
            obj_description(c.oid), t.reloptions
        from pg_class c left join pg_class t on t.oid = c.reltoastrelid
        where c.relnamespace = {s} and c.relkind <> 'i'""",
    "columns": """
        select c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,
            a.attgenerated, a.attstorage, a.attcompression, a.attstattarget, a.attcollation::regcollation::text,
            a.attoptions, a.attacl::text, pg_get_expr(d.adbin, d.adrelid), col_description(c.oid, a.attnum)
        from pg_class c join pg_attribute a on a.attrelid = c.oid
        left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
        where c.relnamespace = {s} and c.relkind <> 'i' and a.attnum > 0 and not a.attisdropped""",
    "constraints": """
        select c.relname, k.conname, k.contype, pg_get_constraintdef(k.oid), k.convalidated, obj_description(k.oid)
        from pg_constraint k left join pg_class c on c.oid = k.conrelid where k.connamespace = {s}""",
    "indexes": """
        select c.relname, pg_get_indexdef(c.oid), i.indisvalid, i.indisclustered, i.indisreplident, c.reloptions
        from pg_class c join pg_index i on i.indexrelid = c.oid where c.relnamespace = {s}""",
    "routines": """
        select p.oid::regprocedure::text, p.prokind, case when p.prokind <> 'a' then pg_get_functiondef(p.oid) end,
            p.prosrc, p.proowner::regrole::text, p.proacl::text, obj_description(p.oid)
        from pg_proc p where p.pronamespace = {s}""",
    "views": """
        select c.relname, pg_get_viewdef(c.oid) from pg_class c where c.relnamespace = {s} and c.relkind in ('v', 'm')""",
    "sequences": """
        select c.relname, q.seqtypid::regtype::text, q.seqstart, q.seqincrement, q.seqmax, q.seqmin, q.seqcache,
            q.seqcycle, d.refobjid::regclass::text, d.refobjsubid, d.deptype
        from pg_class c join pg_sequence q on q.seqrelid = c.oid
        left join pg_depend d on d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype in ('a', 'i')
        where c.relnamespace = {s}""",
    "types": """
        select t.typname, t.typtype, t.typnotnull, t.typdefault, format_type(t.typbasetype, t.typtypmod), t.typacl::text,
            array(select e.enumlabel::text from pg_enum e where e.enumtypid = t.oid order by e.enumsortorder),
            obj_description(t.oid)
        from pg_type t where t.typnamespace = {s}""",
    "triggers": """
        select c.relname, pg_get_triggerdef(g.oid), g.tgenabled from pg_trigger g join pg_class c on c.oid = g.tgrelid
        where c.relnamespace = {s} and not g.tgisinternal""",
    "rules": """
        select c.relname, pg_get_ruledef(r.oid) from pg_rewrite r join pg_class c on c.oid = r.ev_class
        where c.relnamespace = {s}""",
    "policies": """
        select c.relname, p.polname, p.polcmd, p.polroles::regrole[]::text, pg_get_expr(p.polqual, c.oid)
        from pg_policy p join pg_class c on c.oid = p.polrelid where c.relnamespace = {s}""",
    "statistics": "select e.stxname, pg_get_statisticsobjdef(e.oid) from pg_statistic_ext e where e.stxnamespace = {s}",
}


@pytest.fixture
def empty_database(server: Any) -> Iterator[Callable[..., str]]:
    """Make databases with nothing in them; `settings` become their defaults. All are dropped at the end."""
    names: list[str] = []
    with psycopg.connect(conninfo(server.dsn), autocommit=True) as connection:

        def create(**settings: str) -> str:
            name = f"migration_{uuid.uuid4().hex[:12]}"
            connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
            names.append(name)
            for setting, value in settings.items():
                connection.execute(
                    sql.SQL("alter database {} set {} = {}").format(*map(sql.Identifier, (name, setting)), value)
                )
            return make_conninfo(conninfo(server.dsn), dbname=name)

        yield create
        for name in names:
            connection.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


@pytest.fixture
def read_catalog() -> Callable[..., Catalog]:
    """Read all that a schema holds as sorted rows of text; the schema's own name is told as coordinator."""

    def read(dsn: str, schema: str = "coordinator") -> Catalog:
        with psycopg.connect(dsn) as connection:
            # The names in definitions depend on the path; outside of it all are qualified.
            connection.execute("set search_path = pg_catalog")
            return {
                kind: sorted(
                    (
                        tuple(_plain(value, schema) for value in row)
                        for row in connection.execute(query.format(s=f"'\"{schema}\"'::regnamespace"))
                        if VERSION_TABLE not in str(row[0])
                    ),
                    key=repr,
                )
                for kind, query in CATALOG_QUERIES.items()
            }

    return read


def _plain(value: Any, schema: str) -> Any:
    # Function sources have the quoted form of the placeholder rule, definitions made by PostgreSQL the bare one.
    if isinstance(value, str):
        return value.replace(f'"{schema}".', '"coordinator".').replace(f"{schema}.", "coordinator.")
    return value
