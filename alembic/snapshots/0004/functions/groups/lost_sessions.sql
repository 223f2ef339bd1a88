create or replace function coordinator.lost_sessions() returns table (coordinator uuid, session_pid int)
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
    -- Living coordinators whose announced session does not hold its lock now. It proves nothing by itself: a process that
    -- reconnects has none for a moment. Who has seen the same one for two seconds, over one connection, gives it to reap.
    -- Read in pg_locks, never by trying the lock: a try that succeeds would look like the session (R6).
    with held as materialized (
        select l.pid, (l.classid::bigint << 32) | l.objid::bigint as key
        from pg_locks l
        where l.locktype = 'advisory' and l.objsubid = 1 and l.granted
          and l.database = (select d.oid from pg_database d where d.datname = current_database())
    )
    select c.coordinator, c.session_pid
    from coordinator.coordinators c
    where c.state in ('alive', 'draining') and c.session_pid is not null
      and not exists (select from held h
                      where h.pid = c.session_pid and h.key = coordinator.session_key(c.coordinator, c.session_pid))
$$;
