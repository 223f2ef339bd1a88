create or replace function coordinator.read_windows(
    p_topic_id int,
    p_ords int[],
    p_partitions int[],
    p_froms bigint[],
    p_tos bigint[]
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
-- The visible rows of windows [from, to) of one topic's partitions; p_ords are the caller's names for them.
-- Raises: KG013, KG014 the snapshot is older than what was dropped since.
-- Returns: per window in offset order, because offset order implies segment order. Several windows may name one partition.
-- Plans are pinned: without statistics a window becomes a bitmap scan with a sort, five times slower. Each segment that
-- can hold a window's rows is read by itself, so a plan has one table however many segments there are. Retired ones are not.
declare
    v_messages regclass;
    v_relation text;
    v_slice record;
begin
    select t.messages, t.messages::text into v_messages, v_relation from coordinator.topics t where t.topic_id = p_topic_id;
    if v_messages is not null and pg_table_is_visible(v_messages) is null then
        perform coordinator.raise_gone(p_topic_id, v_messages);
    end if;
    for v_slice in
        select s.segment, array_agg(w.ord) as ords, array_agg(w.partition) as partitions,
               array_agg(w.lo) as froms, array_agg(w.hi) as tos
        from coordinator.segments s
        join unnest(p_ords, p_partitions, p_froms, p_tos) as w(ord, partition, lo, hi)
          on (s.floors is null or s.floors[w.partition + 1] is null or w.hi - 1 > s.floors[w.partition + 1])
         and (s.ceilings is null or w.lo <= coalesce(s.ceilings[w.partition + 1], -1))
        where s.topic_id = p_topic_id and s.retired_at is null and w.lo < w.hi
        group by s.segment
        order by s.segment
    loop
        begin
            return query execute coordinator.window_select(v_relation, v_slice.segment)
            using v_slice.ords, v_slice.partitions, v_slice.froms, v_slice.tos;
        exception when undefined_table then
            perform coordinator.raise_gone(p_topic_id, v_messages);
        end;
    end loop;
end
$$;
