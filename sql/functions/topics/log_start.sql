create or replace function coordinator.log_start(p_topic_id int, p_partition int) returns bigint
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
-- The first offset of a partition that is kept.
begin
    return coalesce((select t.first_offsets[p_partition + 1] from coordinator.topics t where t.topic_id = p_topic_id), 0);
end
$$;
