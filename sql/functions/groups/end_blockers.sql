create or replace function coordinator.end_blockers(p_pid int) returns int[]
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
    -- Ends the sessions for which a waiting session waits, those of the caller's own role alone; returns their pids. It runs with the
    -- caller's rights, so that a role ends nobody but itself.
    -- Materialized: in a WHERE, the planner may call pg_terminate_backend before it has compared anything, and end everybody.
    with found as materialized (
        select a.pid
        from unnest(pg_blocking_pids(p_pid)) as b(pid)
        join pg_stat_activity a on a.pid = b.pid
        where a.usename = session_user
    )
    select coalesce(array_agg(f.pid) filter (where pg_terminate_backend(f.pid)), '{}') from found f
$$;
