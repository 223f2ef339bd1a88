create or replace function coordinator.begin_task(p_task text, p_every_s double precision default 0) returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
-- True for the one process that may do a task of maintenance now: nobody else is at it, and it was not done within p_every_s.
-- The lock ends with the transaction, so that it works behind a pooler, and a process that is killed leaves nothing behind.
-- Locks: one advisory lock per task and schema, tried only.
begin
    perform coordinator.require_read_committed('maintenance');
    if not pg_try_advisory_xact_lock(hashtextextended('coordinator.maintenance/' || p_task, 0)) then
        return false;
    end if;
    return not exists (
        select from coordinator.maintenance m
        where m.task = p_task and m.succeeded_at > coordinator.now_() - make_interval(secs => p_every_s)
          and m.succeeded_at <= coordinator.now_());
end
$$;
