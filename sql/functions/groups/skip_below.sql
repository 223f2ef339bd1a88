create or replace function coordinator.skip_below(
    p_group int,
    p_topic int,
    p_partition int,
    p_offset bigint,
    p_reason text,
    p_by text default null
) returns int8multirange
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
-- Makes a group pass an offset without settling what is below: committed rises to it, never falls, and the owner is fenced.
-- Parked messages below are skipped too, but for those that carry their payload (replayed dead letters). Written into skips.
-- Returns: what was skipped; {} where nothing was left below.
-- Locks: the claim's row FOR NO KEY UPDATE, waiting. Handlers that are acking hold KEY SHARE there, and are not waited for (seek does, it may set them back):
-- the epoch is over for all that come after, and whoever claims next waits for them and folds their acks.
-- Race: the progress is read in a later statement than the lock, so that an exchange that committed in between is in it.
declare
    v_last coordinator.progress;
    v_acked int8multirange;
    v_parked int8multirange;
    v_skipped int8multirange;
    v_committed bigint;
    v_now timestamptz := coordinator.now_();
begin
    perform 1 from coordinator.claims c
    where c.group_id = p_group and c.topic_id = p_topic and c.partition = p_partition
    for no key update;
    if not found then
        return '{}';
    end if;
    select p.* into strict v_last from coordinator.progress p
    where p.group_id = p_group and p.topic_id = p_topic and p.partition = p_partition
    order by p.seq desc limit 1;
    select coalesce(range_agg(int8range(a."offset", a."offset" + 1)), '{}') into v_acked from coordinator.acks a
    where a.group_id = p_group and a.topic_id = p_topic and a.partition = p_partition and a."offset" < p_offset;
    with gone as (
        delete from coordinator.retries r
        where r.group_id = p_group and r.topic_id = p_topic and r.partition = p_partition and r."offset" < p_offset
          and r.payload is null
        returning r."offset"
    ) select coalesce(range_agg(int8range(g."offset", g."offset" + 1)), '{}') into v_parked from gone g;
    if v_last.committed >= p_offset and v_parked = '{}' then
        return '{}';
    end if;
    v_skipped := int8multirange(int8range(least(v_last.committed, p_offset), p_offset)) - v_last.done - v_acked
                 + (v_parked - v_acked);
    v_committed := lower(int8multirange(int8range(greatest(v_last.committed, p_offset), null)) - v_last.done);
    perform coordinator.fence_claim(p_group, p_topic, p_partition, v_committed, v_last.done, 0, v_now);
    if v_skipped <> '{}' then
        insert into coordinator.skips (group_id, topic_id, partition, offsets, reason, skipped_by, at)
        values (p_group, p_topic, p_partition, v_skipped, p_reason, p_by, v_now);
        perform pg_notify('coordinator.skips', '');
    end if;
    return v_skipped;
end
$$;
