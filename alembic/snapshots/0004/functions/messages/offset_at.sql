create or replace function coordinator.offset_at(p_topic_id int, p_partition int, p_time timestamptz) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set quote_all_identifiers = off
set enable_seqscan = off
set enable_bitmapscan = off
as $$
-- The first kept offset of a partition from which on every message published at or after p_time is read; the next offset
-- to be handed out where there is none.
-- A publisher reads the clock just before it takes its offsets. So a message's time is at most that of its nextval, which
-- rises with the offset; where publishers overlap, or one pauses between the two, messages with times that are too early
-- lie among later ones. A binary search may stop above such a message: from there blocks of offsets are searched
-- downwards, until one has no message of that time or later.
declare
    v_relation text;
    v_segment record;
    v_row record;
    v_lo bigint;
    v_hi bigint;
    v_mid bigint;
    v_found bigint := coordinator.high_offset(p_topic_id, p_partition) + 1;
    v_below bigint;
begin
    select t.messages::text into v_relation from coordinator.topics t where t.topic_id = p_topic_id;
    for v_segment in
        select s.segment from coordinator.segments s where s.topic_id = p_topic_id and s.retired_at is null order by s.segment
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
    loop
        select min(r."offset") into v_below
        from coordinator.read_windows(p_topic_id, array[0], array[p_partition], array[greatest(v_found - 10000, 0)],
                                      array[v_found]) r
        where r.published_at >= p_time;
        exit when v_below is null;
        v_found := v_below;
    end loop;
    return greatest(v_found, coordinator.log_start(p_topic_id, p_partition));
end
$$;
