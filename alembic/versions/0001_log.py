"""The log: topics, messages, groups, claims, deliveries, and the functions that work on them."""

from pathlib import Path

from alembic.util import load_python_file

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

run_sql = load_python_file(Path(__file__).parents[1], "run_sql.py")

# By the catalogue and not by name: topics make tables and sequences of their own. The version table stays, since
# Alembic writes to it after this. Cascade, because tables, functions and types may depend on each other in any order.
DROP_EVERYTHING = """
do $$
declare
    v_schema oid := (select c.relnamespace from pg_class c where c.oid = 'coordinator.schema_revision'::regclass);
    v_object record;
begin
    for v_object in
        select c.oid, c.relkind
        from pg_class c
        where c.relnamespace = v_schema
            and c.relkind in ('v', 'm', 'r', 'p', 'f', 'S')
            and c.oid <> 'coordinator.schema_revision'::regclass
        -- Sequences last: those of identity columns go with their tables, and can't go before.
        order by c.relkind = 'S', c.oid
    loop
        -- An earlier drop may have taken it along.
        continue when not exists (select from pg_class c where c.oid = v_object.oid);
        execute format(
            'drop %s %s cascade',
            case v_object.relkind
                when 'v' then 'view'
                when 'm' then 'materialized view'
                when 'f' then 'foreign table'
                when 'S' then 'sequence'
                else 'table'
            end,
            v_object.oid::regclass
        );
    end loop;
    for v_object in select p.oid from pg_proc p where p.pronamespace = v_schema loop
        continue when not exists (select from pg_proc p where p.oid = v_object.oid);
        execute format('drop routine %s cascade', v_object.oid::regprocedure);
    end loop;
    -- Arrays and row types go with what they belong to.
    for v_object in
        select t.oid
        from pg_type t
        left join pg_class c on c.oid = t.typrelid
        where t.typnamespace = v_schema
            and t.typtype in ('c', 'd', 'e', 'r')
            and (t.typrelid = 0 or c.relkind = 'c')
    loop
        continue when not exists (select from pg_type t where t.oid = v_object.oid);
        execute format('drop type %s cascade', v_object.oid::regtype);
    end loop;
end
$$;
"""


def upgrade() -> None:
    run_sql.run_snapshot(revision)


def downgrade() -> None:
    """Drop everything in the schema, messages included, but for the version table."""
    run_sql.run_text(DROP_EVERYTHING)
