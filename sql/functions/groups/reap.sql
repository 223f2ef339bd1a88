create or replace function coordinator.reap(p_observed_s double precision, p_lost jsonb default '{}')
returns table (member_id uuid, client_id text, host text, pid int, in_groups text[])
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- Declares dead whose lease (or grace, for who is away) ran out, whose session is gone, or who was replaced under its static id;
-- charges what they may have been running, and takes them out of their groups.
-- p_observed_s: how long the caller's own connection has been unbroken. Nobody is judged, by lease or session, before that is
-- a lease's time: after a restart or an outage everybody can renew first, and nothing is charged (R6).
-- p_lost: {coordinator: pid} of sessions that the caller has seen without their lock for two seconds (lost_sessions). One that has
-- been announced anew meanwhile, under another pid, is left alone.
-- Returns: who was declared dead, with the groups that it was in.
-- Locks: coordinator rows FOR UPDATE, then the rows of their groups, then their claims FOR UPDATE in key order, all SKIP LOCKED; one
-- whose groups and claims are not all to be had (somebody joins, a transactional ack is under way) is left for the next time.
-- Race: a claim holds its coordinator's row FOR KEY SHARE, so a coordinator can't be declared dead while it claims.
declare
    v_candidate uuid;
    v_groups int[];
    v_dead uuid[] := '{}';
    v_lost uuid[] := array(select l.coordinator from coordinator.lost_sessions() l
                           where p_lost <> '{}' and l.session_pid::text = p_lost ->> l.coordinator::text);
begin
    for v_candidate in
        select c.coordinator from coordinator.coordinators c
        where c.state <> 'dead'
          and ((c.lease_s <= p_observed_s
                and (c.lease_until < coordinator.now_()
                     or (c.coordinator = any (v_lost) and c.session_pid::text = p_lost ->> c.coordinator::text)))
               or exists (select from coordinator.coordinators n
                          where n.static_id = c.static_id and n.started_at > c.started_at and n.state <> 'dead'))
        order by c.coordinator
        for update skip locked
    loop
        -- Before the claims, in the order of all others; a group that somebody is changing is left for the next time.
        v_groups := array(select g.group_id from coordinator.groups g
                          where exists (select from coordinator.members m
                                        where m.group_id = g.group_id and m.coordinator = v_candidate)
                          order by g.group_id for no key update skip locked);
        continue when exists (select from coordinator.members m
                              where m.coordinator = v_candidate and m.group_id <> all (v_groups));
        if coordinator.charge_crash(v_candidate, case when v_candidate = any (v_lost) then interval '2 seconds' else '0' end) then
            v_dead := v_dead || v_candidate;
        end if;
    end loop;
    if v_dead = '{}' then
        return;
    end if;
    -- Before its memberships go.
    return query
        select c.coordinator, c.client_id, c.host, c.pid,
               array(select g.name from coordinator.members m join coordinator.groups g on g.group_id = m.group_id
                     where m.coordinator = c.coordinator order by g.name)
        from coordinator.coordinators c where c.coordinator = any (v_dead) order by c.coordinator;
    update coordinator.coordinators c set state = 'dead', died_at = coordinator.now_() where c.coordinator = any (v_dead);
    perform coordinator.drop_members(v_dead);
    -- The dead are kept for a day, for those who ask what happened.
    delete from coordinator.coordinators c
    where c.state = 'dead' and c.died_at < coordinator.now_() - interval '1 day'
      and not exists (select from coordinator.claims k where k.owner = c.coordinator);
end
$$;
