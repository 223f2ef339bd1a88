create or replace function coordinator.evict(p_coordinator uuid) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- An operator ends a coordinator's rights: it is dead from now on, and its claims are free. Nothing is charged: what it was running is
-- not suspected. A process that lives drops everything and comes back as a new member.
-- Raises: KG003 there is no such coordinator, or it is dead.
-- Locks: its coordinators row FOR UPDATE; then its groups rows.
-- Race: a join holds that row FOR KEY SHARE, which a plain UPDATE would not wait for; the member it adds would stay, and with it
-- what plans give to it.
begin
    perform 1 from coordinator.coordinators c where c.coordinator = p_coordinator for update;
    update coordinator.coordinators c set state = 'dead', died_at = coordinator.now_()
    where c.coordinator = p_coordinator and c.state <> 'dead';
    if not found then
        raise exception using errcode = 'KG003', message = format('there is no living coordinator %s', p_coordinator),
            hint = 'coordinator members list';
    end if;
    perform coordinator.drop_members(array[p_coordinator]);
    perform pg_notify('coordinator.groups', '');
end
$$;
