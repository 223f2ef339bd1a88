create or replace function coordinator.server_gauges(
    out dead_tuples jsonb,
    out oldest_snapshot_s double precision,
    out maintained_at jsonb,
    out segments jsonb,
    out withheld text[]
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- What the statistics and the catalogue say. dead_tuples: {table: number}, of the tables of this schema but for messages;
-- maintained_at: {task: seconds since 1970}; segments: {topic: number}.
-- oldest_snapshot_s: the age of the oldest transaction that keeps vacuum from removing rows; a role without
-- pg_read_all_stats sees its own sessions alone, prepared transactions apart.
-- withheld: the views that a managed server keeps from the owner of this schema; what they would tell is null, and the rest is told.
begin
    withheld := array(select v.name from unnest(array['pg_stat_all_tables', 'pg_stat_activity', 'pg_prepared_xacts']) v(name)
                      where not has_table_privilege('pg_catalog.' || v.name, 'select'));
    if withheld @> array['pg_stat_all_tables'] then
        dead_tuples := '{}';
    else
        select coalesce(jsonb_object_agg(s.relname, s.n_dead_tup), '{}') into dead_tuples
        from pg_stat_all_tables s
        where s.schemaname = 'coordinator' and s.relname !~ '^topic_[0-9]+(_s[0-9]+)?$' and s.relname <> 'schema_revision';
    end if;
    if not withheld && array['pg_stat_activity', 'pg_prepared_xacts'] then
        select extract(epoch from clock_timestamp() - min(a.since))::double precision into oldest_snapshot_s
        from (select s.xact_start as since from pg_stat_activity s
              where (s.backend_xmin is not null or s.backend_xid is not null) and s.pid <> pg_backend_pid()
              union all
              select p.prepared from pg_prepared_xacts p) a;
        oldest_snapshot_s := greatest(coalesce(oldest_snapshot_s, 0), 0);
    end if;
    select coalesce(jsonb_object_agg(m.task, extract(epoch from m.succeeded_at)), '{}') into maintained_at
    from coordinator.maintenance m where m.succeeded_at is not null;
    select coalesce(jsonb_object_agg(t.name, (select count(*) from coordinator.segments s
                                              where s.topic_id = t.topic_id and s.retired_at is null)), '{}')
    into segments from coordinator.topics t;
end
$$;
