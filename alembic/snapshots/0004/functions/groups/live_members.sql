create or replace function coordinator.live_members(p_group int, p_topic int default null) returns int
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
-- How many members of a group, or those that read one topic, have a lease that runs.
begin
    return (select count(*) from coordinator.members m
            join coordinator.coordinators c on c.coordinator = m.coordinator
            where m.group_id = p_group and (p_topic is null or p_topic = any (m.topic_ids))
              and c.state <> 'dead' and c.lease_until >= coordinator.now_());
end
$$;
