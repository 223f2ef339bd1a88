create or replace function coordinator.drain(p_coordinator uuid, p_drain boolean default true) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- An operator takes the work away from a coordinator, which lives on: plans leave it out, and it finishes, releases and claims
-- nothing more. p_drain false: it takes part again.
-- Raises: KG003 there is no such coordinator, or it is dead or away.
-- Locks: its coordinators row; then its groups rows in order of their ids.
begin
    update coordinator.coordinators c set state = case when p_drain then 'draining' else 'alive' end
    where c.coordinator = p_coordinator and c.state in ('alive', 'draining');
    if not found then
        raise exception using errcode = 'KG003', message = format('there is no living coordinator %s', p_coordinator),
            hint = 'coordinator members list';
    end if;
    perform from coordinator.groups g
    where exists (select from coordinator.members m where m.group_id = g.group_id and m.coordinator = p_coordinator)
    order by g.group_id
    for no key update;
    update coordinator.groups g set version = g.version + 1
    where exists (select from coordinator.members m where m.group_id = g.group_id and m.coordinator = p_coordinator);
    perform pg_notify('coordinator.groups', '');
end
$$;
