create or replace function coordinator.hold_session(p_coordinator uuid, p_client_pid int) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- Announces that the calling session lives as long as the coordinator: takes its advisory lock, which ends with the session.
-- p_client_pid: the backend's pid as the client was told when it connected. A pooler tells another one than that of the
-- backend that runs this, and a session behind it says nothing of the process: then nothing is announced.
-- Returns: whether it was announced; false leaves the lease to decide alone.
-- Raises: as raise_dead, when the coordinator was declared dead, or left.
-- Locks: its own advisory key, which nobody else takes; then the coordinator's own row.
-- Race: the lock comes before the row that names it, so nobody can see a session announced and not held.
begin
    if p_client_pid is distinct from pg_backend_pid() then
        update coordinator.coordinators c set session_pid = null
        where c.coordinator = p_coordinator and c.session_pid is not null;
        return false;
    end if;
    perform pg_advisory_lock_shared(coordinator.session_key(p_coordinator, pg_backend_pid()));
    update coordinator.coordinators c set session_pid = pg_backend_pid()
    where c.coordinator = p_coordinator and c.state in ('alive', 'draining');
    if not found then
        perform coordinator.raise_dead(p_coordinator);
    end if;
    return true;
end
$$;
