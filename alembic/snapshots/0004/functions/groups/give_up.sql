create or replace function coordinator.give_up(p_coordinator uuid) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- Releases whatever a coordinator owns, at whatever epoch, and lets it leave: for its own process, which has dropped all
-- memory because the database goes on with another history (R4), and comes back under a new id.
-- A new id, and not only a new epoch: the lost history may have handed out the epoch that comes next here, and a handler's
-- transaction that still acks under it must find the fence closed. Nothing is charged.
-- Locks: its own row first, then as release and leave; a claim that somebody holds stays, and is free when the lease has ended.
begin
    perform 1 from coordinator.coordinators c where c.coordinator = p_coordinator for update;
    perform coordinator.release(p_coordinator, array_agg(c.group_id), array_agg(c.topic_id), array_agg(c.partition),
                                array_agg(c.epoch))
    from coordinator.claims c where c.owner = p_coordinator
    having count(*) > 0;
    perform coordinator.leave(p_coordinator);
end
$$;
