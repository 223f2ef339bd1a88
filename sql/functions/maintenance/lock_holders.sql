create or replace function coordinator.lock_holders(p_tables regclass[]) returns text
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
-- Who holds locks on tables, for people: pids with the names of their applications, and since when their transactions are open.
begin
    return (
        select string_agg(w.who, ', ' order by w.who)
        from (
            select distinct case when l.pid is null then 'a prepared transaction' else
                       format('pid %s', l.pid) || coalesce(' ' || nullif(a.application_name, ''), '')
                       || coalesce(', open since ' || to_char(a.xact_start at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS') || ' UTC', '')
                   end as who
            from pg_locks l left join pg_stat_activity a on a.pid = l.pid
            where l.locktype = 'relation' and l.granted and l.relation = any (p_tables::oid[])
              and l.pid is distinct from pg_backend_pid()
              and l.database = (select d.oid from pg_database d where d.datname = current_database())
        ) w);
end
$$;
