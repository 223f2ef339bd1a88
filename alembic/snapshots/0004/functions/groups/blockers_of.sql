create or replace function coordinator.blockers_of(p_pid int) returns table (
    pid int, prepared text, role text, application_name text, client_addr inet, state text, transaction_age_s double precision
)
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
    -- For whom a waiting session waits. A prepared transaction has no pid: it is named by its gid, and ends by COMMIT PREPARED or
    -- ROLLBACK PREPARED alone. Of another role's session a caller without pg_read_all_stats sees the pid and the role only.
    select a.pid, null::text, a.usename::text, a.application_name, a.client_addr, a.state,
           extract(epoch from clock_timestamp() - a.xact_start)::double precision
    from unnest(pg_blocking_pids(p_pid)) as b(pid)
    join pg_stat_activity a on a.pid = b.pid
    union
    select null, x.gid, x.owner::text, null, null, 'prepared',
           extract(epoch from clock_timestamp() - x.prepared)::double precision
    from pg_locks l
    join pg_prepared_xacts x on x.transaction = l.transactionid
    where l.pid = p_pid and not l.granted and l.locktype = 'transactionid'
$$;
