create or replace function coordinator.leave(p_coordinator uuid, p_keep boolean default false) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- Takes a coordinator that has released its claims out of its groups and out of the table. Harmless when repeated.
-- p_keep: it will be back. With a static id its place is kept for its grace: it stays in its groups, nothing moves, and
-- nobody gets what is meant for it; then reap takes it out.
-- Locks: its own row first, as reap does; the other order could deadlock with it.
begin
    perform 1 from coordinator.coordinators c where c.coordinator = p_coordinator for update;
    if p_keep then
        update coordinator.coordinators c
        set state = 'away', session_pid = null, lease_until = coordinator.now_() + make_interval(secs => c.grace_s)
        where c.coordinator = p_coordinator and c.state = 'alive' and c.static_id is not null and c.grace_s > 0
          and not exists (select from coordinator.claims k where k.owner = p_coordinator);
        if found then
            return;
        end if;
    end if;
    perform coordinator.drop_members(array[p_coordinator]);
    delete from coordinator.coordinators c where c.coordinator = p_coordinator and c.state <> 'dead'
        and not exists (select from coordinator.claims k where k.owner = p_coordinator);
end
$$;
