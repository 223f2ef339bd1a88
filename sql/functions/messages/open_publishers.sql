create or replace function coordinator.open_publishers(p_topic coordinator.topics) returns text[]
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
-- The transactions that hold a publisher's lock of any partition of a topic, by virtualtransaction. A prepared one keeps the
-- name it had, until the server restarts: from then on it is -1/ and a transaction id.
begin
    return (
        with entry as (
            select k.key >> 32 & 4294967295 as classid, k.key & 4294967295 as objid
            from generate_series(-1, p_topic.partitions - 1) as p(n)
            cross join lateral (select coordinator.lock_key(p_topic.topic_id, p.n) as key) k
        )
        select coalesce(array_agg(distinct l.virtualtransaction), '{}')
        from pg_locks l
        join entry e on e.classid = l.classid::bigint and e.objid = l.objid::bigint
        where l.locktype = 'advisory' and l.objsubid = 1 and l.mode = 'ShareLock'
          and l.database = (select d.oid from pg_database d where d.datname = current_database()));
end
$$;
