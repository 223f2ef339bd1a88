create or replace function coordinator.examine_groups() returns table (
    "group" text, topic text, members int, lag bigint, parked bigint, blocked bigint, open bigint, owned int, partitions int,
    progress_at timestamptz, stuck_since timestamptz, blocked_since timestamptz, oldest_segment int, current_segment bigint,
    pinned_bytes bigint
)
language sql volatile security definer
set search_path = pg_catalog, pg_temp
set quote_all_identifiers = off
as $$
    -- For doctor: what each group does, or leaves undone, with each topic.
    -- members: those whose lease runs. open: what owners may have in hand. progress_at: of the last write. stuck_since: the
    -- oldest write among partitions that are owned, have a message in hand, and settle nothing. blocked: messages behind a
    -- failing one of their key. oldest_segment: the one that its slowest partition still needs; pinned_bytes: closed
    -- segments from there on.
    with place as (
        select o.*, g.group_id, t.topic_id, t.messages, t.segment_sequence
        from coordinator.offsets o
        join coordinator.groups g on g.name = o."group"
        join coordinator.topics t on t.name = o.topic
    ), needed as (
        select p.group_id, p.topic_id, min(coalesce(
                   (select min(s.segment) from coordinator.segments s
                    where s.topic_id = p.topic_id
                      and (s.ceilings is null or s.ceilings[p.partition + 1] >= p.current_offset)),
                   pg_sequence_last_value(p.segment_sequence)::int)) as segment
        from place p
        group by p.group_id, p.topic_id
    )
    select p."group", p.topic,
           (select count(*)::int from coordinator.members m
            join coordinator.coordinators c on c.coordinator = m.coordinator and c.state <> 'dead'
                 and c.lease_until >= coordinator.now_()
            where m.group_id = p.group_id and p.topic_id = any (m.topic_ids)),
           sum(p.lag)::bigint, sum(p.parked)::bigint, coalesce(max(b.blocked), 0)::bigint, sum(p.window_open)::bigint,
           count(p.member_id)::int, count(*)::int, max(p.progress_at),
           min(p.progress_at) filter (where p.member_id is not null and p.window_open > 0), min(b.since),
           n.segment, pg_sequence_last_value(p.segment_sequence),
           (select coalesce(sum(pg_total_relation_size(to_regclass(format('%s_s%s', p.messages, s.segment)))), 0)::bigint
            from coordinator.segments s
            where s.topic_id = p.topic_id and s.segment >= n.segment
              and s.segment < pg_sequence_last_value(p.segment_sequence))
    from place p
    join needed n on n.group_id = p.group_id and n.topic_id = p.topic_id
    left join lateral (
        select count(*) as blocked, min(r.created_at) as since from coordinator.retries r
        where r.group_id = p.group_id and r.topic_id = p.topic_id and r.behind_key) b on true
    group by p.group_id, p."group", p.topic_id, p.topic, p.messages, p.segment_sequence, n.segment
    order by p."group", p.topic
$$;
