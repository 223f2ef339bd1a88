create or replace function coordinator.retire_segments() returns table (topic text, segment int)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- Takes segments out of reading that retention no longer keeps and that every group has passed: committed, and the oldest
-- parked message without a payload of its own. Nothing is dropped yet, see drop_retired.
-- Returns: the segments, one row each. Raises: KG007.
-- Locks: the lock of this task, tried only; topics rows NO KEY UPDATE, one that is locked is left for the next time.
-- Race: a group that starts, or seeks back, while its messages are retired. Both take the topic's row FOR SHARE before they read
-- log_start. Who has it before this function is seen, because the groups are read in a later statement than the lock; who
-- has it after reads the new log_start. What moves a group forward needs no lock: it only makes more to retire.
declare
    v_topic coordinator.topics;
    v_topic_id int;
    v_expired int;
begin
    if not coordinator.begin_task('retire') then
        return;
    end if;
    for v_topic_id in
        select t.topic_id from coordinator.topics t
        where t.retention_s is not null or t.retention_bytes is not null
        order by t.topic_id
    loop
        select t.* into v_topic from coordinator.topics t where t.topic_id = v_topic_id for no key update skip locked;
        continue when not found;
        v_expired := coordinator.expired_segment(v_topic);
        continue when v_expired is null;
        return query
        with held as materialized (
            select c.partition, min(coordinator.held_offset(c.group_id, c.topic_id, c.partition)) as "offset"
            from coordinator.claims c where c.topic_id = v_topic_id
            group by c.partition
        ), passed as materialized (
            select s.segment, s.ceilings from coordinator.segments s
            where s.topic_id = v_topic_id and s.segment <= v_expired and s.retired_at is null
              and not exists (select from held h where h."offset" <= coalesce(s.ceilings[h.partition + 1], -1))
        ), kept as (
            update coordinator.topics t
            set first_segment = l.segment + 1, first_offsets = array(select u.o + 1 from unnest(l.ceilings) as u(o))
            from (select p.* from passed p order by p.segment desc limit 1) l
            where t.topic_id = v_topic_id
        )
        update coordinator.segments s set retired_at = coordinator.now_()
        from passed p
        where s.topic_id = v_topic_id and s.segment = p.segment
        returning v_topic.name, s.segment;
    end loop;
    perform coordinator.end_task('retire');
end
$$;
