create or replace function coordinator.rejoin_group(
    p_coordinator uuid,
    p_group text,
    p_group_id int,
    p_topics text[],
    p_topic_ids int[],
    out group_id int,
    out topics jsonb
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set quote_all_identifiers = off
as $$
-- As join_group, by a process that has read this group before and was cut off; but it makes nothing. Who deletes a group while
-- a reader of it is frozen must not find it there again, to be read from its beginning, when that one thaws.
-- p_group_id, p_topic_ids: what the names meant then. Both must be the same: a name may have been given again, and in another
-- history of the database (R4) a number, too.
-- Returns: group_id, null where the group is gone; topics as join_group, without those that are gone.
-- Raises: KG002, KG012 the coordinator is dead, or replaced; KG008.
-- Locks: as join_group.
declare
    v_topic_ids int[];
begin
    perform coordinator.require_read_committed('rejoin_group');
    perform 1 from coordinator.topics t where t.topic_id = any (p_topic_ids) order by t.topic_id for share;
    perform 1 from coordinator.coordinators c where c.coordinator = p_coordinator and c.state in ('alive', 'draining') for key share;
    if not found then
        perform coordinator.raise_dead(p_coordinator);
    end if;
    select g.group_id into rejoin_group.group_id from coordinator.groups g
    where g.group_id = p_group_id and g.name = p_group
    for no key update;
    if not found then
        return;
    end if;
    v_topic_ids := array(
        select t.topic_id from unnest(p_topics, p_topic_ids) as u(name, topic_id)
        join coordinator.topics t on t.topic_id = u.topic_id and t.name = u.name
        join coordinator.group_topics s on s.group_id = p_group_id and s.topic_id = t.topic_id
        order by t.topic_id);
    if v_topic_ids <> '{}' then
        perform coordinator.check_subscribe(v_topic_ids);
        perform coordinator.add_member(p_group_id, p_coordinator, v_topic_ids);
    end if;
    select jsonb_agg(jsonb_build_object('topic_id', t.topic_id, 'name', t.name, 'partitions', t.partitions,
                                        'channel', t.messages::text) order by t.topic_id)
    into topics from coordinator.topics t where t.topic_id = any (v_topic_ids);
end
$$;
