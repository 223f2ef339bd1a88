create or replace function coordinator.group_gauges() returns table (
    "group" text, topic text, partition int, lag bigint, parked bigint, owned boolean, lag_s double precision,
    oldest_unacked_s double precision
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set jit = off
as $$
-- Where all groups stand, for metrics and health. lag as in the view offsets: an upper bound that counts no messages; of all
-- rows only parked ones are counted, which max_parked bounds.
-- lag_s: the age of the first message at or above the committed offset that is not settled, 0 where there is none.
-- oldest_unacked_s: the same with what is parked.
-- Returns: by group, topic and partition. Cost: 16,000 claims in some 300 ms.
declare
    v_now timestamptz := coordinator.now_();
begin
    return query
    with highs as materialized (
        select t.topic_id, t.name, u.n::int - 1 as partition, coalesce(pg_sequence_last_value(u.s), -1) as high
        from coordinator.topics t cross join unnest(t.offset_sequences) with ordinality as u(s, n)
    ), waiting as materialized (
        select r.group_id, r.topic_id, r.partition, count(*) as parked, min(r."offset") as first_parked,
               min(r.published_at) as published_at
        from coordinator.retries r group by r.group_id, r.topic_id, r.partition
    ), states as materialized (
        select row_number() over ()::int as ord, c.group_id, c.topic_id, h.name as topic, c.partition, p.committed, p.done,
               greatest(h.high + 1 - p.committed
                        - case when p.done = '{}' then 0 else coordinator.multirange_size(p.done) end, 0) as unread,
               o.coordinator is not null as owned, coalesce(w.parked, 0) as parked, w.first_parked, w.published_at
        from coordinator.claims c
        join highs h on h.topic_id = c.topic_id and h.partition = c.partition
        cross join lateral (
            select r.committed, r.done from coordinator.progress r
            where r.group_id = c.group_id and r.topic_id = c.topic_id and r.partition = c.partition
            order by r.seq desc limit 1) p
        left join coordinator.coordinators o on o.coordinator = c.owner and o.state <> 'dead' and o.lease_until >= v_now
        left join waiting w on w.group_id = c.group_id and w.topic_id = c.topic_id and w.partition = c.partition
    ), wanted as (
        select s.topic_id, s.ord, s.partition, s.committed as o, s.done from states s where s.unread > 0
        union all
        -- Negative: the first parked message of it, whose row is looked for as it is.
        select s.topic_id, -s.ord, s.partition, s.first_parked, '{}' from states s where s.first_parked is not null
    ), ages as materialized (
        select f.ord, extract(epoch from v_now - min(f.published_at))::double precision as age_s
        from (select w.topic_id, array_agg(w.ord) as ords, array_agg(w.partition) as partitions, array_agg(w.o) as offsets,
                     array_agg(w.done) as done
              from wanted w group by w.topic_id) t
        cross join lateral coordinator.first_published(t.topic_id, t.ords, t.partitions, t.offsets, t.done) f
        group by f.ord
    )
    select g.name, s.topic, s.partition, s.unread + s.parked, s.parked, s.owned, greatest(coalesce(a.age_s, 0), 0),
           greatest(coalesce(a.age_s, 0), coalesce(b.age_s, 0),
                    coalesce(extract(epoch from v_now - s.published_at)::double precision, 0))
    from states s
    join coordinator.groups g on g.group_id = s.group_id
    left join ages a on a.ord = s.ord
    left join ages b on b.ord = -s.ord
    order by g.name, s.topic, s.partition;
end
$$;
