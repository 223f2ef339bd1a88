create or replace function coordinator.examine_partitions() returns table (
    topic text, partition int, sequence text, high bigint, last_message bigint, cache bigint, increment bigint
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set quote_all_identifiers = off
set enable_seqscan = off
set enable_bitmapscan = off
as $$
-- For doctor: each partition's sequence beside the highest offset that a visible message has, -1 for none.
-- A restore that carries no sequences, or a setval by hand, leaves high below last_message: publishing would meet offsets
-- that exist. Anything but CACHE 1 lets offsets become visible out of order of their hand-out, which no reader expects.
-- One look into an index per partition, and one more for each segment in which it has no message.
declare
    v_topic coordinator.topics;
    v_sequence regclass;
    v_segment int;
begin
    for v_topic in select t.* from coordinator.topics t order by t.name loop
        for v_partition in 0 .. v_topic.partitions - 1 loop
            partition := v_partition;
            v_sequence := v_topic.offset_sequences[partition + 1];
            topic := v_topic.name;
            sequence := v_sequence::text;
            high := coalesce(pg_sequence_last_value(v_sequence), -1);
            select s.seqcache, s.seqincrement into cache, increment from pg_sequence s where s.seqrelid = v_sequence;
            last_message := -1;
            for v_segment in
                select s.segment from coordinator.segments s where s.topic_id = v_topic.topic_id order by s.segment desc
            loop
                continue when to_regclass(format('%s_s%s', v_topic.messages, v_segment)) is null;
                execute format('select r."offset" from %s_s%s r where r."partition" = $1 order by r."offset" desc limit 1',
                               v_topic.messages, v_segment) into last_message using partition;
                exit when last_message is not null;
            end loop;
            last_message := coalesce(last_message, -1);
            return next;
        end loop;
    end loop;
end
$$;
