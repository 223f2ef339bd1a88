create or replace function coordinator.delete_group(
    p_group text,
    p_force boolean default false,
    p_reason text default null,
    out members int,
    out claims int,
    out dead_letters bigint
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- Deletes a group for good: its offsets, parked messages and dead letters. The topics stay as they are.
-- Returns: how many live members, claims and dead letters it had.
-- Raises: KG003 no such group; KG004 members are live and p_force is not given, or a claim's row is held; KG007.
-- Locks: the groups row NO KEY UPDATE, so that nobody joins or plans; then its claims FOR UPDATE, so that no ack is under way, and
-- none comes any more. Call hold before where members are live.
-- Why not FOR UPDATE at once: who holds a claim and writes a dead letter or a skip takes KEY SHARE of the group, by the foreign
-- key. With the claims locked nobody does any more, and the DELETE waits for nobody.
declare
    v_group int;
    v_claim record;
begin
    perform coordinator.require_read_committed('delete_group');
    select g.group_id into v_group from coordinator.groups g where g.name = p_group for no key update;
    if not found then
        raise exception using errcode = 'KG003', message = format('there is no group %L', p_group),
            hint = coordinator.group_hint(p_group);
    end if;
    members := coordinator.live_members(v_group);
    if members > 0 and not p_force then
        raise exception using errcode = 'KG004', message = format('group %L has %s live members', p_group, members),
            hint = 'Stop them first, or force it: what reads the group ends then. A process that is started again makes the group anew.';
    end if;
    claims := 0;
    for v_claim in
        select c.topic_id, c.partition, t.name from coordinator.claims c
        join coordinator.topics t on t.topic_id = c.topic_id
        where c.group_id = v_group
        order by c.topic_id, c.partition
    loop
        perform coordinator.lock_claim(v_group, p_group, v_claim.topic_id, v_claim.name, v_claim.partition);
        claims := claims + 1;
    end loop;
    select count(*) into dead_letters from coordinator.dead_letters d where d.group_id = v_group;
    delete from coordinator.acks a where a.group_id = v_group;
    delete from coordinator.retries r where r.group_id = v_group;
    delete from coordinator.crashes x where x.group_id = v_group;
    delete from coordinator.progress p where p.group_id = v_group;
    delete from coordinator.targets w where w.group_id = v_group;
    delete from coordinator.groups g where g.group_id = v_group;
    perform coordinator.record('delete group', p_group, v_group, null, null, p_reason => p_reason, p_detail => jsonb_build_object(
        'members', members, 'claims', claims, 'dead_letters', dead_letters));
    perform pg_notify('coordinator.groups', '');
end
$$;
