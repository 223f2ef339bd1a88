create or replace function coordinator.reap(p_observed_s double precision) returns uuid[]
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- Declares dead whose lease ran out, charges what they may have been running, and takes them out of their groups.
-- p_observed_s: how long the caller's own connection has been unbroken. A lease is counted only over that: after a
-- restart or an outage everybody first has a lease's time to renew, and nothing is charged.
-- Returns: the ids declared dead.
-- Locks: coordinator rows FOR UPDATE, then their claims FOR UPDATE in key order, both SKIP LOCKED; one whose claims are not all
-- to be had (a transactional ack is under way) is left for the next time; then group rows in order of their ids.
-- Race: a claim holds its coordinator's row FOR KEY SHARE, so a coordinator can't be declared dead while it claims.
declare
    v_candidate uuid;
    v_dead uuid[] := '{}';
begin
    for v_candidate in
        select c.coordinator from coordinator.coordinators c
        where c.state <> 'dead' and c.lease_until < coordinator.now_() and c.lease_s <= p_observed_s
        order by c.coordinator
        for update skip locked
    loop
        if coordinator.charge_crash(v_candidate) then
            v_dead := v_dead || v_candidate;
        end if;
    end loop;
    if v_dead = '{}' then
        return v_dead;
    end if;
    update coordinator.coordinators c set state = 'dead', died_at = coordinator.now_() where c.coordinator = any (v_dead);
    perform coordinator.drop_members(v_dead);
    -- The dead are kept for a day, for those who ask what happened.
    delete from coordinator.coordinators c
    where c.state = 'dead' and c.died_at < coordinator.now_() - interval '1 day'
      and not exists (select from coordinator.claims k where k.owner = c.coordinator);
    return v_dead;
end
$$;
