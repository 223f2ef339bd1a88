create or replace function coordinator.store_plan(
    p_group int,
    p_version bigint,
    p_topics int[],
    p_partitions int[],
    p_coordinators uuid[]
) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- Stores who should own what, if the membership is still the one that the plan was made from.
-- Returns: false where another member was first or the membership moved on; then the plan is not stored.
-- Locks: the group's row, SKIP LOCKED: whoever holds it is planning or changing the membership.
begin
    perform coordinator.require_read_committed('store_plan');
    perform 1 from coordinator.groups g
    where g.group_id = p_group and g.version = p_version and g.planned_version < p_version
    for no key update skip locked;
    if not found then
        return false;
    end if;
    -- What stays as it was keeps the time since which it is meant so.
    delete from coordinator.targets t
    where t.group_id = p_group
      and (t.topic_id, t.partition, t.coordinator) not in (select * from unnest(p_topics, p_partitions, p_coordinators));
    insert into coordinator.targets (group_id, topic_id, partition, coordinator, assigned_at)
    select p_group, u.topic_id, u.partition, u.coordinator, coordinator.now_()
    from unnest(p_topics, p_partitions, p_coordinators) as u(topic_id, partition, coordinator)
    on conflict do nothing;
    update coordinator.groups g set planned_version = p_version, unplanned_since = null where g.group_id = p_group;
    perform pg_notify('coordinator.groups', '');
    return true;
end
$$;
