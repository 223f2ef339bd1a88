create or replace function coordinator.leave(p_coordinator uuid) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- Takes a coordinator that has released its claims out of its groups and out of the table. Harmless when repeated.
-- Locks: its own row first, as reap does; the other order could deadlock with it.
begin
    perform 1 from coordinator.coordinators c where c.coordinator = p_coordinator for update;
    perform coordinator.drop_members(array[p_coordinator]);
    delete from coordinator.coordinators c where c.coordinator = p_coordinator and c.state <> 'dead'
        and not exists (select from coordinator.claims k where k.owner = p_coordinator);
end
$$;
