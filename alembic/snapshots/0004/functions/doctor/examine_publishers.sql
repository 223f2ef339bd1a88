create or replace function coordinator.examine_publishers() returns table (
    topic text, partition int, pid int, application_name text, since timestamptz
)
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
    -- For doctor: transactions that have published and are not over. Readers that keep a partition's order wait at their
    -- offsets, and no segment that they may write to is dropped. No pid: a prepared transaction. Partition -1: more than 16.
    select t.name, p.n, l.pid, a.application_name, a.xact_start
    from coordinator.topics t
    cross join lateral generate_series(-1, t.partitions - 1) as p(n)
    join pg_locks l on l.locktype = 'advisory' and l.objsubid = 1 and l.mode = 'ShareLock' and l.granted
         and l.classid::bigint << 32 | l.objid::bigint = coordinator.lock_key(t.topic_id, p.n)
         and l.database = (select d.oid from pg_database d where d.datname = current_database())
    left join pg_stat_activity a on a.pid = l.pid
$$;
