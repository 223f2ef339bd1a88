create or replace function coordinator.wake_behind(
    p_group int,
    p_topic int,
    p_partition int,
    p_epoch bigint,
    p_key text,
    p_now timestamptz
) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
-- The message at the head of a key was settled: hands out what waits behind it, up to a window at once, in offset order. One by
-- one would leave a key that failed once on a slow path for ever (R18).
begin
    -- An array: without statistics the planner would run a subquery with a limit once for each row of the partition.
    update coordinator.retries r
    set behind_key = false, dispatched_epoch = p_epoch, next_at = p_now
    where r.group_id = p_group and r.topic_id = p_topic and r.partition = p_partition and r."offset" = any (array(
        select b."offset" from coordinator.retries b
        where b.group_id = p_group and b.topic_id = p_topic and b.partition = p_partition and b.key = p_key and b.behind_key
        order by b."offset" limit 500));
end
$$;
