"""What a schema holds, object by object, as text: for comparing an installation with what sql/ makes."""

import secrets
from typing import Any

import psycopg

from coordinator.db.schema import VERSION_TABLE, sql_dir, sql_files
from coordinator.protocol.placeholder import render

# Name and definition, each without owners, rights and numbers of the server. Names are what a person would look for.
_QUERIES = {
    "table": """
        select c.relname, concat_ws(' ', c.relkind, c.relpersistence,
            (select string_agg(o, ',' order by o) from unnest(c.reloptions) o), c.relrowsecurity, c.relreplident)
        from pg_class c where c.relnamespace = {s} and c.relkind in ('r', 'p', 'f', 'm')""",
    "column": """
        select c.relname || '.' || a.attname, concat_ws(' ', format_type(a.atttypid, a.atttypmod),
            case when a.attnotnull then 'not null' end, a.attidentity, a.attgenerated, a.attcollation::regcollation,
            pg_get_expr(d.adbin, d.adrelid))
        from pg_class c join pg_attribute a on a.attrelid = c.oid
        left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
        where c.relnamespace = {s} and c.relkind in ('r', 'p', 'v') and a.attnum > 0 and not a.attisdropped""",
    "constraint": """
        select c.relname || '.' || k.conname, concat_ws(' ', pg_get_constraintdef(k.oid), k.convalidated)
        from pg_constraint k join pg_class c on c.oid = k.conrelid where k.connamespace = {s}""",
    "index": """
        select c.relname, concat_ws(' ', pg_get_indexdef(c.oid), i.indisvalid)
        from pg_class c join pg_index i on i.indexrelid = c.oid where c.relnamespace = {s}""",
    "function": """
        select p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ')', pg_get_functiondef(p.oid)
        from pg_proc p where p.pronamespace = {s} and p.prokind in ('f', 'p')""",
    "view": "select c.relname, pg_get_viewdef(c.oid) from pg_class c where c.relnamespace = {s} and c.relkind = 'v'",
    "sequence": """
        select c.relname, concat_ws(' ', q.seqtypid::regtype, q.seqstart, q.seqincrement, q.seqmin, q.seqmax, q.seqcache,
            q.seqcycle)
        from pg_class c join pg_sequence q on q.seqrelid = c.oid where c.relnamespace = {s}""",
    "type": """
        select t.typname, coalesce((select string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod), ','
            order by a.attnum) from pg_attribute a where a.attrelid = t.typrelid and a.attnum > 0), t.typtype::text)
        from pg_type t left join pg_class c on c.oid = t.typrelid
        where t.typnamespace = {s} and t.typtype in ('c', 'e', 'd') and coalesce(c.relkind, 'c') = 'c'""",
    "trigger": """
        select c.relname || '.' || g.tgname, concat_ws(' ', pg_get_triggerdef(g.oid), g.tgenabled)
        from pg_trigger g join pg_class c on c.oid = g.tgrelid where c.relnamespace = {s} and not g.tgisinternal""",
    "rule": """
        select c.relname || '.' || r.rulename, pg_get_ruledef(r.oid) from pg_rewrite r join pg_class c on c.oid = r.ev_class
        where c.relnamespace = {s} and r.rulename <> '_RETURN'""",
}

Catalogue = dict[tuple[str, str], str]


def read(connection: psycopg.Connection[Any], schema: str) -> Catalogue:
    """Return definitions by kind and name; the schema's own name is told as coordinator."""
    found: Catalogue = {}
    with connection.transaction():
        # The names in definitions depend on the path; outside of it all are qualified.
        connection.execute("set local search_path = pg_catalog")
        for kind, query in _QUERIES.items():
            for name, definition in connection.execute(query.format(s=f"'\"{schema}\"'::regnamespace")).fetchall():
                if VERSION_TABLE not in name:
                    found[kind, _plain(name, schema)] = _plain(definition or "", schema)
    return found


def expected(connection: psycopg.Connection[Any]) -> Catalogue:
    """Return what sql/ makes on this server: it is made in a schema of its own, read and rolled back."""
    schema = f"coordinator_doctor_{secrets.token_hex(4)}"
    with connection.transaction(force_rollback=True):
        connection.execute("set local search_path = pg_catalog, pg_temp; set local check_function_bodies = off")
        connection.execute(f'create schema "{schema}"')
        for path in sql_files(sql_dir()):
            connection.execute(render(path.read_text(encoding="utf-8"), schema))
        return read(connection, schema)


def _plain(text: str, schema: str) -> str:
    # Function sources have the quoted form of the placeholder rule, definitions made by PostgreSQL the bare one.
    return (
        text.replace(f'"{schema}".', '"coordinator".')
        .replace(f"{schema}.", "coordinator.")
        .replace('"coordinator".', "coordinator.")
    )
