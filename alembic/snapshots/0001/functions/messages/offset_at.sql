create or replace function coordinator.offset_at(p_topic_id int, p_partition int, p_time timestamptz) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
-- The first offset of a partition from which on every message published at or after p_time is read; the next offset
-- to be handed out where there is none.
-- published_at is clock_timestamp() at the insert, so it rises with the offset but for publishers that overlap: a binary
-- search finds the place, and the thousand offsets before it are searched for later times of overlapping publishers.
declare
    v_relation text;
    v_segment record;
    v_row record;
    v_lo bigint;
    v_hi bigint;
    v_mid bigint;
    v_found bigint := coordinator.high_offset(p_topic_id, p_partition) + 1;
begin
    select t.messages::text into v_relation from coordinator.topics t where t.topic_id = p_topic_id;
    for v_segment in
        select s.segment from coordinator.segments s where s.topic_id = p_topic_id order by s.segment
    loop
        execute format('select r."offset" as o, r.published_at as at from %s_s%s r where r."partition" = $1 '
                       'order by r."offset" desc limit 1', v_relation, v_segment.segment) into v_row using p_partition;
        if v_row.o is null or v_row.at < p_time then
            continue;
        end if;
        v_hi := v_row.o;
        execute format('select min(r."offset") from %s_s%s r where r."partition" = $1', v_relation, v_segment.segment)
            into v_lo using p_partition;
        -- Invariant: a row at v_hi is at or after p_time; rows below v_lo are before it, overlaps apart.
        while v_lo < v_hi loop
            v_mid := (v_lo + v_hi) / 2;
            execute format('select r."offset" as o, r.published_at as at from %s_s%s r where r."partition" = $1 and '
                           'r."offset" >= $2 order by r."offset" limit 1', v_relation, v_segment.segment)
                into v_row using p_partition, v_mid;
            if v_row.at >= p_time then
                v_hi := v_mid;
            else
                v_lo := v_row.o + 1;
            end if;
        end loop;
        v_found := v_hi;
        exit;
    end loop;
    return coalesce((select min(r."offset") from coordinator.read_windows(
                         p_topic_id, array[0], array[p_partition], array[greatest(v_found - 1000, 0)], array[v_found]) r
                     where r.published_at >= p_time), v_found);
end
$$;
