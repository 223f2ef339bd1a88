create or replace function coordinator.heartbeat(p_coordinator uuid, p_draining boolean default false) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- Renews the lease. Raises: KG002 when the coordinator was declared dead, or left.
-- Locks: the coordinator's own row and nothing else, so heartbeats can't deadlock with acks.
begin
    update coordinator.coordinators c
    set lease_until = coordinator.now_() + make_interval(secs => c.lease_s),
        state = case when p_draining then 'draining' else c.state end
    where c.coordinator = p_coordinator and c.state <> 'dead';
    if not found then
        raise exception using errcode = 'KG002', message = format('coordinator %s was declared dead', p_coordinator),
            hint = 'Its lease ran out. It must drop what it holds and register again under a new id.';
    end if;
end
$$;
