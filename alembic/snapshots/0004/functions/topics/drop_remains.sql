create or replace function coordinator.drop_remains() returns table (remains text, dropped boolean)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '20ms'
as $$
-- Drops tables and sequences of topics that were deleted; those that a publisher still holds are left for the next time.
-- Returns: what was found. Locks: ACCESS EXCLUSIVE on each, for which it waits 20 ms.
-- Why by the catalogue: no list can be out of step with it. A topic that is being created is not in it before its row is.
declare
    v_schema oid := (select c.relnamespace from pg_class c where c.oid = 'coordinator.topics'::regclass);
begin
    for remains in
        select format('%I.%I', n.nspname, c.relname) from pg_class c
        join pg_namespace n on n.oid = c.relnamespace
        cross join lateral (select substring(c.relname from '^topic_([0-9]+)(_s[0-9]+|_p[0-9]+|_segment)?$')::int as topic_id) w
        where c.relnamespace = v_schema and c.relkind in ('r', 'p', 'S') and not c.relispartition and w.topic_id is not null
          and not exists (select from coordinator.topics t where t.topic_id = w.topic_id)
        order by c.relkind = 'S', 1
    loop
        begin
            if (select c.relkind = 'S' from pg_class c where c.oid = to_regclass(remains)) then
                execute 'drop sequence ' || remains;
            else
                execute 'drop table ' || remains;
            end if;
            dropped := true;
        exception when lock_not_available then
            dropped := false;
        end;
        return next;
    end loop;
end
$$;
