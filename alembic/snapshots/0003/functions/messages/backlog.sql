create or replace function coordinator.backlog(p_topic coordinator.topics) returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
-- How many messages the slowest group of a topic has to settle; 0 without groups. The view offsets says what lag is; here
-- parked messages, the only rows that are counted, are counted up to the topic's limit.
begin
    return coalesce((
        with highs as materialized (
            select u.n - 1 as partition, coalesce(pg_sequence_last_value(u.s), -1) as high
            from unnest(p_topic.offset_sequences) with ordinality as u(s, n))
        select max(o.open + q.parked)
        from coordinator.group_topics t
        cross join lateral (
            select coalesce(sum(greatest(h.high + 1 - r.committed - coordinator.multirange_size(r.done), 0)), 0) as open
            from highs h
            cross join lateral (
                select p.committed, p.done from coordinator.progress p
                where p.group_id = t.group_id and p.topic_id = p_topic.topic_id and p.partition = h.partition
                order by p.seq desc limit 1) r) o
        cross join lateral (
            select count(*) as parked from (
                select from coordinator.retries r
                where r.group_id = t.group_id and r.topic_id = p_topic.topic_id limit p_topic.max_backlog) w) q
        where t.topic_id = p_topic.topic_id), 0);
end
$$;
