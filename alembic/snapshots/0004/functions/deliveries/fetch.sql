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
set quote_all_identifiers = off
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
-- The visible messages of committed windows; locks nothing, so a client that is frozen while it receives them holds nothing.
-- p_reads: int8multirange per claim, what the caller has not read ({[120,)} after an exchange). Of that, what lies in the
-- window of the newest progress of that epoch and is not done is read: nothing is handed out before its window committed.
-- Returns: rows in offset order per entry (ord counts from 1). An offset of the window without a row is a gap.
-- Raises: KG013, KG014 as read_windows, which would keep a second copy of every row on its way; plans are pinned as there.
declare
    v_slice record;
begin
    perform coordinator.check_subscribe(p_topics);
    for v_slice in
        with windows as materialized (
            select e.topic_id, e.ord::int as ord, e.partition, lower(r.range) as lo, upper(r.range) as hi
            from unnest(p_groups, p_topics, p_partitions, p_epochs, p_reads::int8multirange[])
                 with ordinality as e(group_id, topic_id, partition, epoch, reads, ord)
            cross join lateral (
                select p.epoch, p.committed, p.hwm, p.done from coordinator.progress p
                where p.group_id = e.group_id and p.topic_id = e.topic_id and p.partition = e.partition
                order by p.seq desc limit 1) l
            cross join lateral unnest(e.reads * int8multirange(int8range(l.committed, l.hwm)) - l.done) as r(range)
            where l.epoch = e.epoch)
        select t.topic_id, t.messages, t.messages::text as relation, s.segment,
               array_agg(w.ord) as ords, array_agg(w.partition) as partitions, array_agg(w.lo) as froms, array_agg(w.hi) as tos
        from windows w
        join coordinator.topics t on t.topic_id = w.topic_id
        join coordinator.segments s on s.topic_id = w.topic_id and s.retired_at is null
         and (s.floors is null or s.floors[w.partition + 1] is null or w.hi - 1 > s.floors[w.partition + 1])
         and (s.ceilings is null or w.lo <= coalesce(s.ceilings[w.partition + 1], -1))
        group by t.topic_id, t.messages, s.segment
        order by t.topic_id, s.segment
    loop
        if pg_table_is_visible(v_slice.messages) is null then
            perform coordinator.raise_gone(v_slice.topic_id, v_slice.messages);
        end if;
        begin
            return query execute coordinator.window_select(v_slice.relation, v_slice.segment)
            using v_slice.ords, v_slice.partitions, v_slice.froms, v_slice.tos;
        exception when undefined_table then
            perform coordinator.raise_gone(v_slice.topic_id, v_slice.messages);
        end;
    end loop;
end
$$;
