create or replace function coordinator.in_log(p_topic coordinator.topics, p_partition int, p_offset bigint) returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
-- Does the log still have this message, which it had? Always, as long as no segment of the topic was dropped.
begin
    return p_topic.first_segment = 1 or exists (
        select from coordinator.read_windows(p_topic.topic_id, array[0], array[p_partition], array[p_offset], array[p_offset + 1]));
end
$$;
