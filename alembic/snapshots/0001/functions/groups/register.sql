create or replace function coordinator.register(
    p_coordinator uuid,
    p_client_id text,
    p_host text,
    p_pid int,
    p_lease_s double precision
) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- Enters one process, with a new id at every start; its lease runs from now on.
begin
    insert into coordinator.coordinators (coordinator, client_id, host, pid, state, lease_s, lease_until, started_at)
    values (p_coordinator, p_client_id, p_host, p_pid, 'alive', p_lease_s,
            coordinator.now_() + make_interval(secs => p_lease_s), coordinator.now_());
end
$$;
