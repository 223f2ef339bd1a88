create or replace function coordinator.register(
    p_coordinator uuid,
    p_client_id text,
    p_host text,
    p_pid int,
    p_lease_s double precision,
    p_static_id text default null,
    p_grace_s double precision default 0,
    p_groups text[] default '{}'
) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- Enters one process, with a new id at every start; its lease runs from now on.
-- p_static_id: a name that is the same at every start. Who has it already is replaced at once: its memberships of p_groups and
-- what was meant for it pass to the new one, which therefore changes no plan; the rest it leaves. If it had not left by itself
-- it is declared dead, and what it may have been running is charged.
-- p_grace_s: how long the place is kept after leave.
-- Locks: its new row; coordinators rows with its static id FOR UPDATE SKIP LOCKED; their groups rows; members, targets; then as
-- charge_crash.
-- Race: a plan that somebody is computing names the old one. Stored after this, it would give partitions to nobody for good; so
-- where a plan is due, the membership counts as changed.
-- Race: an old one whose row, or one of whose claims, is held by somebody now stays, and is left to reap, which counts a newer
-- one with the same static id as its end. Two that register at the same moment don't see each other; the same rule ends the elder.
declare
    v_old record;
begin
    insert into coordinator.coordinators
        (coordinator, client_id, host, pid, state, lease_s, lease_until, started_at, static_id, grace_s)
    values (p_coordinator, p_client_id, p_host, p_pid, 'alive', p_lease_s,
            coordinator.now_() + make_interval(secs => p_lease_s), coordinator.now_(), p_static_id, p_grace_s);
    for v_old in
        select c.coordinator, c.state from coordinator.coordinators c
        where c.static_id = p_static_id and c.state <> 'dead' and c.coordinator <> p_coordinator
        order by c.coordinator
        for update skip locked
    loop
        perform from coordinator.groups g
        where exists (select from coordinator.members m where m.group_id = g.group_id and m.coordinator = v_old.coordinator)
        order by g.group_id
        for no key update;
        update coordinator.groups g set version = g.version + 1
        where g.planned_version < g.version
          and exists (select from coordinator.members m where m.group_id = g.group_id and m.coordinator = v_old.coordinator);
        update coordinator.members m set coordinator = p_coordinator, inherited = true, joined_at = coordinator.now_()
        from coordinator.groups g
        where g.group_id = m.group_id and g.name = any (p_groups) and m.coordinator = v_old.coordinator
          and not exists (select from coordinator.members n
                          where n.group_id = m.group_id and n.coordinator = p_coordinator);
        update coordinator.targets t set coordinator = p_coordinator
        where t.coordinator = v_old.coordinator
          and exists (select from coordinator.members m where m.group_id = t.group_id and m.coordinator = p_coordinator);
        perform coordinator.drop_members(array[v_old.coordinator]);
        if v_old.state = 'away' then
            delete from coordinator.coordinators c where c.coordinator = v_old.coordinator;
        elsif coordinator.charge_crash(v_old.coordinator) then
            update coordinator.coordinators c set state = 'dead', died_at = coordinator.now_()
            where c.coordinator = v_old.coordinator;
        end if;
    end loop;
end
$$;
