create or replace function coordinator.oldest_unsettled(p_group text) returns table (
    topic text, "partition" int, "offset" bigint, published_at timestamptz, age_s double precision
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- The oldest visible message of each partition that a group has not settled; partitions where there is none are not listed.
-- Parked messages are looked at by their lowest offset. Looks past at most 1000 offsets of rolled-back transactions.
-- Raises: KG003 no such group. Locks: none.
declare
    v_group int := coordinator.group_id_of(p_group);
    v_topic record;
begin
    for v_topic in
        select t.topic_id, t.name, array_agg(w.partition) as partitions, array_agg(w.lo) as froms, array_agg(w.hi) as tos
        from coordinator.topics t
        join coordinator.group_topics s on s.group_id = v_group and s.topic_id = t.topic_id
        cross join lateral (
            select c.partition, lower(r.range) as lo, least(upper(r.range), lower(r.range) + 1000) as hi
            from coordinator.claims c
            cross join lateral (
                select p.committed, p.done from coordinator.progress p
                where p.group_id = c.group_id and p.topic_id = c.topic_id and p.partition = c.partition
                order by p.seq desc limit 1) l
            cross join lateral (
                select u.range from unnest(int8multirange(int8range(
                    l.committed, greatest(coordinator.high_offset(c.topic_id, c.partition) + 1, l.committed))) - l.done) as u(range)
                limit 1) r
            where c.group_id = v_group and c.topic_id = t.topic_id
            union all
            select c.partition, q.lo, q.lo + 1 from coordinator.claims c
            cross join lateral (
                select min(r."offset") as lo from coordinator.retries r
                where r.group_id = c.group_id and r.topic_id = c.topic_id and r.partition = c.partition) q
            where c.group_id = v_group and c.topic_id = t.topic_id and q.lo is not null) w
        group by t.topic_id, t.name
    loop
        return query
        select distinct on (f.partition) v_topic.name, f.partition, f."offset", f.published_at,
               extract(epoch from coordinator.now_() - f.published_at)::double precision
        from (
            select v_topic.partitions[m.ord] as partition, m."offset", m.published_at
            from coordinator.first_rows(v_topic.topic_id, v_topic.partitions, v_topic.froms, v_topic.tos) m
            union all
            select r.partition, r."offset", r.published_at from coordinator.retries r
            where r.group_id = v_group and r.topic_id = v_topic.topic_id and r.published_at is not null) f
        order by f.partition, f.published_at;
    end loop;
end
$$;
