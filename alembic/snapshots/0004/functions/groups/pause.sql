create or replace function coordinator.pause(
    p_group text,
    p_topic text default null,
    p_partitions int[] default null,
    p_reason text default null
) returns table (topic text, "partition" int, changed boolean)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- Pauses a group, or a topic or partitions of it: nothing is fetched or handed over; what runs may finish and is settled.
-- Lasts until resume, over restarts and takeovers. Owners are told by NOTIFY, and see it with their next look at the group.
-- A topic that the group begins to read while all that it reads is paused is paused, too; so are partitions that are added.
-- Returns: what is meant, and what was not paused before. Raises: KG003 no such group, topic or partition in it.
-- Locks: the groups row NO KEY UPDATE, as who joins, so that a topic which is joined now is not missed; group_topics rows KEY
-- SHARE, by the foreign key; never a claim, so it waits for no handler.
declare
    v_group int := coordinator.group_id_of(p_group);
begin
    perform 1 from coordinator.groups g where g.group_id = v_group for no key update;
    return query
    with wanted as (
        select c.* from coordinator.claims_named(v_group, p_group, p_topic, p_partitions) c
    ), made as (
        insert into coordinator.pauses as p (group_id, topic_id, partition, kind, paused_by, reason, paused_at)
        select v_group, w.topic_id, w."partition", 'operator', coordinator.actor(), p_reason, coordinator.now_()
        from wanted w order by w.topic_id, w."partition"
        on conflict on constraint pauses_pkey do nothing
        returning p.topic_id, p.partition
    )
    select w.topic, w."partition", m.topic_id is not null
    from wanted w left join made m on m.topic_id = w.topic_id and m.partition = w."partition"
    order by w.topic, w."partition";
    perform coordinator.record('pause', p_group, v_group, p_topic, null, p_reason => p_reason,
                               p_detail => jsonb_build_object('partitions', p_partitions));
    perform pg_notify('coordinator.groups', '');
end
$$;
