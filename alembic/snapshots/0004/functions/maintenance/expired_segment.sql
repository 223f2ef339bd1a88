create or replace function coordinator.expired_segment(p_topic coordinator.topics) returns int
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
-- Up to which segment a topic's retention keeps nothing: closed long enough ago, or more than retention_bytes behind it, and
-- nobody is left who may commit into it. Null where it keeps all. Says nothing about what groups still need.
-- Race: who was open when the segment was closed held its lock from before it looked which segment is current; open_segment
-- writes these down after it has made the next one current. A prepared transaction loses its name when the server restarts,
-- so one that bears a name of that kind counts for every segment.
declare
    v_open text[] := coordinator.open_publishers(p_topic);
    v_current int := pg_sequence_last_value(p_topic.segment_sequence);
    v_now timestamptz := coordinator.now_();
    v_behind bigint := 0;
    v_segment coordinator.segments;
    v_expired int;
begin
    if p_topic.retention_bytes is not null then
        select coalesce(sum(pg_total_relation_size(coordinator.segment_table(p_topic, s.segment))), 0) into v_behind
        from coordinator.segments s where s.topic_id = p_topic.topic_id and s.retired_at is null;
    end if;
    for v_segment in
        select s.* from coordinator.segments s
        where s.topic_id = p_topic.topic_id and s.retired_at is null and s.segment < v_current
        order by s.segment
    loop
        exit when v_segment.closed_at is null or v_segment.ceilings is null;
        if p_topic.retention_bytes is not null then
            v_behind := v_behind - coalesce(pg_total_relation_size(coordinator.segment_table(p_topic, v_segment.segment)), 0);
        end if;
        exit when coalesce(v_segment.closed_at > v_now - make_interval(secs => p_topic.retention_s), true)
              and coalesce(v_behind < p_topic.retention_bytes, true);
        if v_segment.publishers is null then
            -- Closed before this was written down: whoever is open now is taken for one of then.
            update coordinator.segments s set publishers = v_open
            where s.topic_id = p_topic.topic_id and s.segment = v_segment.segment;
            v_segment.publishers := v_open;
        end if;
        exit when exists (select from unnest(v_open) as u(v) where u.v = any (v_segment.publishers) or u.v like '-1/%');
        v_expired := v_segment.segment;
    end loop;
    return v_expired;
end
$$;
