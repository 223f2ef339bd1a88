create or replace function coordinator.add_member(p_group_id int, p_coordinator uuid, p_topic_ids int[]) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
-- Makes a coordinator a member of a group that reads these topics, beside those that it has joined it for before.
-- A membership that was inherited from an earlier incarnation is made its own; unless it reads other topics now, the plan stays.
-- Locks: members. Call it with the groups row NO KEY UPDATE.
declare
    v_before coordinator.members;
    v_topic_ids int[];
begin
    select m.* into v_before from coordinator.members m
    where m.group_id = p_group_id and m.coordinator = p_coordinator;
    v_topic_ids := array(select unnest(p_topic_ids) union select unnest(v_before.topic_ids) where not v_before.inherited order by 1);
    insert into coordinator.members (group_id, coordinator, topic_ids, joined_at)
    values (p_group_id, p_coordinator, v_topic_ids, coordinator.now_())
    on conflict on constraint members_pkey do update set topic_ids = excluded.topic_ids, inherited = false;
    if v_before.topic_ids is distinct from v_topic_ids then
        update coordinator.groups g
        set version = g.version + 1, joined_at = coordinator.now_(), unused_since = null,
            unplanned_since = coalesce(g.unplanned_since, coordinator.now_())
        where g.group_id = p_group_id;
        perform pg_notify('coordinator.groups', '');
    end if;
end
$$;
