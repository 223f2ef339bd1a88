create or replace function coordinator.skip_expired(p_limit int default 100) returns table (
    topic text, "group" text, "partition" int, offsets text, reason text
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '1s'
as $$
-- Makes groups pass what retention no longer keeps, where the topic says drop, or where the group has expired with release.
-- After that the rule by which segments go is the same for all: everybody has passed them (retire_segments).
-- Returns: what was skipped, p_limit claims at most: who gets p_limit rows calls again. Offsets that were rolled back may be in it.
-- Raises: KG007. Locks: the lock of this task, tried only; claims in order of their keys; one that is held for longer than
-- a second ends the call, what is left is for the next time.
declare
    v_topic coordinator.topics;
    v_segment int;
    v_claim record;
    v_skipped int8multirange;
    v_left int := p_limit;
begin
    if not coordinator.begin_task('skip') then
        return;
    end if;
    for v_topic in
        select t.* from coordinator.topics t
        where t.retention_s is not null or t.retention_bytes is not null
        order by t.topic_id
    loop
        continue when v_topic.unconsumed <> 'drop' and not exists (
            select from coordinator.group_topics s
            where s.topic_id = v_topic.topic_id and coordinator.group_expired(s.group_id) = 'release');
        v_segment := coordinator.expired_segment(v_topic);
        continue when v_segment is null;
        for v_claim in
            select c.group_id, c.partition, g.name, b.below,
                   case when v_topic.unconsumed = 'drop' then 'retention' else 'expiry' end as reason
            from coordinator.segments s
            join coordinator.claims c on c.topic_id = s.topic_id
            join coordinator.groups g on g.group_id = c.group_id
            cross join lateral (select coalesce(s.ceilings[c.partition + 1], -1) + 1 as below) b
            where s.topic_id = v_topic.topic_id and s.segment = v_segment
              and (v_topic.unconsumed = 'drop' or coordinator.group_expired(c.group_id) = 'release')
              and coordinator.held_offset(c.group_id, c.topic_id, c.partition) < b.below
            order by c.group_id, c.partition
        loop
            begin
                v_skipped := coordinator.skip_below(v_claim.group_id, v_topic.topic_id, v_claim.partition, v_claim.below,
                                                    v_claim.reason);
            exception when lock_not_available then
                -- Not one second for each of a hundred: the caller may have heartbeats to send.
                v_left := 0;
                exit;
            end;
            v_left := v_left - 1;
            if v_skipped <> '{}' then
                topic := v_topic.name;
                "group" := v_claim.name;
                "partition" := v_claim.partition;
                offsets := v_skipped::text;
                reason := v_claim.reason;
                return next;
            end if;
            exit when v_left <= 0;
        end loop;
        exit when v_left <= 0;
    end loop;
    perform coordinator.end_task('skip');
end
$$;
