create or replace function coordinator.first_published(
    p_topic_id int,
    p_ords int[],
    p_partitions int[],
    p_offsets bigint[],
    p_done int8multirange[]
) returns table (ord int, published_at timestamptz)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set quote_all_identifiers = off
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
-- When the first visible message was published that is at or above an offset and not in the done of its ord; no row where there
-- is none. p_ords are the caller's names. One index probe each: no rows are counted.
-- Each ord is looked for in the first segment that may hold it and the next, because two overlap where one becomes current.
-- Race: a segment may be dropped between the look at the catalogue and the read; then its ords are not told, this time.
declare
    v_relation text;
    v_slice record;
begin
    select t.messages::text into v_relation from coordinator.topics t where t.topic_id = p_topic_id;
    for v_slice in
        select s.segment, array_agg(w.ord) as ords, array_agg(w.partition) as partitions, array_agg(w.o) as offsets,
               array_agg(w.done) as done
        from unnest(p_ords, p_partitions, p_offsets, p_done) as w(ord, partition, o, done)
        cross join lateral (
            select g.segment from coordinator.segments g
            where g.topic_id = p_topic_id and g.retired_at is null
              and (g.ceilings is null or coalesce(g.ceilings[w.partition + 1], -1) >= w.o)
            order by g.segment limit 2) s
        group by s.segment
        order by s.segment
    loop
        begin
            return query execute format(
                'select w.ord, m.published_at from unnest($1, $2, $3, $4) as w(ord, partition, o, done) cross join lateral ('
                '  select r.published_at from %s_s%s r where r."partition" = w.partition and r."offset" >= w.o'
                '  and not (w.done @> r."offset") order by r."offset" limit 1) m', v_relation, v_slice.segment)
            using v_slice.ords, v_slice.partitions, v_slice.offsets, v_slice.done;
        exception when undefined_table then
            null;
        end;
    end loop;
end
$$;
