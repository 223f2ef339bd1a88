create or replace function coordinator.fetch(
    p_groups int[],
    p_topics int[],
    p_partitions int[],
    p_epochs bigint[],
    p_reads text[]
) returns table (
    ord int, "offset" bigint, published_at timestamptz, message_id uuid, key text, headers text, content_type text, payload bytea
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- The visible messages of committed windows; locks nothing, so a client that is frozen while it receives them holds nothing.
-- p_reads: int8multirange per claim, what the caller has not read ({[120,)} after an exchange). Of that, what lies in the
-- window of the newest progress of that epoch and is not done is read: nothing is handed out before its window committed.
-- Returns: rows in offset order per entry (ord counts from 1). An offset of the window without a row is a gap.
declare
    v_topic record;
begin
    perform coordinator.check_subscribe(p_topics);
    for v_topic in
        select e.topic_id, array_agg(e.ord::int) as ords, array_agg(e.partition) as partitions,
               array_agg(lower(r.range)) as froms, array_agg(upper(r.range)) as tos
        from unnest(p_groups, p_topics, p_partitions, p_epochs, p_reads::int8multirange[])
             with ordinality as e(group_id, topic_id, partition, epoch, reads, ord)
        cross join lateral (
            select p.epoch, p.committed, p.hwm, p.done from coordinator.progress p
            where p.group_id = e.group_id and p.topic_id = e.topic_id and p.partition = e.partition
            order by p.seq desc limit 1) l
        cross join lateral unnest(e.reads * int8multirange(int8range(l.committed, l.hwm)) - l.done) as r(range)
        where l.epoch = e.epoch
        group by e.topic_id
    loop
        return query select m.* from coordinator.read_windows(
            v_topic.topic_id, v_topic.ords, v_topic.partitions, v_topic.froms, v_topic.tos) m;
    end loop;
end
$$;
