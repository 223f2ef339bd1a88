create or replace function coordinator.first_rows(p_topic_id int, p_partitions int[], p_froms bigint[], p_tos bigint[])
returns table (ord int, "offset" bigint, published_at timestamptz)
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
-- The first visible row of each window [from, to), by one look into the index of each segment that can hold it; ord counts the
-- windows from 1. Raises, pinned plans: see read_windows.
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
        select s.segment, array_agg(w.ord::int) as ords, array_agg(w.partition) as partitions,
               array_agg(w.lo) as froms, array_agg(w.hi) as tos
        from coordinator.segments s
        join unnest(p_partitions, p_froms, p_tos) with ordinality as w(partition, lo, hi, ord)
          on (s.floors is null or s.floors[w.partition + 1] is null or w.hi - 1 > s.floors[w.partition + 1])
         and (s.ceilings is null or w.lo <= coalesce(s.ceilings[w.partition + 1], -1))
        where s.topic_id = p_topic_id and w.lo < w.hi
        group by s.segment
        order by s.segment
    loop
        begin
            return query execute format(
                'select w.ord, m."offset", m.published_at from unnest($1, $2, $3, $4) as w(ord, partition, lo, hi) '
                'cross join lateral ('
                '  select r."offset", r.published_at from %s_s%s r'
                '  where r."partition" = w.partition and r."offset" >= w.lo and r."offset" < w.hi'
                '  order by r."offset" limit 1) m', v_relation, v_slice.segment)
            using v_slice.ords, v_slice.partitions, v_slice.froms, v_slice.tos;
        exception when undefined_table then
            perform coordinator.raise_gone(p_topic_id, v_messages);
        end;
    end loop;
end
$$;
