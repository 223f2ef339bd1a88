create or replace function coordinator.heartbeat(p_coordinator uuid, p_draining boolean default false) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- Renews the lease. Raises: as raise_dead, when the coordinator was declared dead, has left, or was replaced.
-- Locks: the coordinator's own row and nothing else, so heartbeats can't deadlock with acks.
begin
    update coordinator.coordinators c
    set lease_until = coordinator.now_() + make_interval(secs => c.lease_s),
        state = case when p_draining then 'draining' else c.state end,
        -- Sent through another backend than the announced one: a pooler, or the session is a new one and not announced yet.
        session_pid = case when c.session_pid = pg_backend_pid() then c.session_pid end
    where c.coordinator = p_coordinator and c.state in ('alive', 'draining')
      and not exists (select from coordinator.coordinators n
                      where n.static_id = c.static_id and n.started_at > c.started_at);
    if not found then
        perform coordinator.raise_dead(p_coordinator);
    end if;
end
$$;
