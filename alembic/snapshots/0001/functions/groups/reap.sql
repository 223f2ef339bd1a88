create or replace function coordinator.reap(p_observed_s double precision) returns uuid[]
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- Declares dead whose lease ran out, and takes them out of their groups.
-- p_observed_s: how long the caller's own connection has been unbroken. A lease is counted only over that: after a
-- restart or an outage everybody first has a lease's time to renew.
-- Returns: the ids declared dead.
-- Locks: coordinator rows FOR UPDATE, which waits for nobody (SKIP LOCKED); then group rows in order of their ids.
-- Race: a claim holds its coordinator's row FOR KEY SHARE, so a coordinator can't be declared dead while it claims.
declare
    v_dead uuid[];
begin
    v_dead := array(
        select c.coordinator from coordinator.coordinators c
        where c.state <> 'dead' and c.lease_until < coordinator.now_() and c.lease_s <= p_observed_s
        order by c.coordinator
        for update skip locked);
    if v_dead = '{}' then
        return v_dead;
    end if;
    update coordinator.coordinators c set state = 'dead', died_at = coordinator.now_() where c.coordinator = any (v_dead);
    perform coordinator.drop_members(v_dead);
    return v_dead;
end
$$;
