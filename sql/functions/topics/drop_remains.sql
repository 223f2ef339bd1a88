create or replace function coordinator.drop_remains() returns table (remains text, dropped boolean)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '20ms'
as $$
-- Drops tables and sequences of topics that were deleted; those of a topic that a publisher still holds are left for the next time.
-- Returns: what was found. Locks: ACCESS EXCLUSIVE on each, for which it waits 20 ms.
-- Why by the catalogue: no list can be out of step with it. A topic that is being created is not in it before its row is.
-- Race: a publisher that has read the topic's row before it was deleted. It takes the segment's sequence before anything else
-- (enlist_publisher): so either that is gone, and the publisher says so, or everything is there until it ends.
declare
    v_schema oid := (select c.relnamespace from pg_class c where c.oid = 'coordinator.topics'::regclass);
    v_topic record;
begin
    for v_topic in
        select array_agg(format('%I.%I', n.nspname, c.relname) order by c.relname <> format('topic_%s_segment', w.topic_id), c.relname)
                   as names,
               array_agg(format('%I.%I', n.nspname, c.relname)) filter (where c.relkind = 'S') as sequences
        from pg_class c
        join pg_namespace n on n.oid = c.relnamespace
        cross join lateral (select substring(c.relname from '^topic_([0-9]+)(_s[0-9]+|_p[0-9]+|_segment)?$')::int as topic_id) w
        where c.relnamespace = v_schema and c.relkind in ('r', 'p', 'S') and not c.relispartition and w.topic_id is not null
          and not exists (select from coordinator.topics t where t.topic_id = w.topic_id)
        group by w.topic_id
        order by w.topic_id
    loop
        begin
            foreach remains in array v_topic.names loop
                if remains = any (v_topic.sequences) then
                    execute 'drop sequence ' || remains;
                else
                    execute 'drop table ' || remains;
                end if;
            end loop;
            dropped := true;
        exception when lock_not_available then
            dropped := false;
        end;
        return query select u.name, drop_remains.dropped from unnest(v_topic.names) as u(name);
    end loop;
end
$$;
