create or replace function coordinator.fence_claim(
    p_group int,
    p_topic int,
    p_partition int,
    p_committed bigint,
    p_done int8multirange,
    p_resets int,
    p_now timestamptz
) returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
-- Gives a claim, which the caller has locked FOR UPDATE, another place under another epoch, and takes it from its owner: whatever
-- that one still writes is refused. Nothing is charged. Ends a hold. Returns: the epoch.
declare
    v_last coordinator.progress;
    v_epoch bigint;
begin
    update coordinator.claims c
    set owner = null, epoch = c.epoch + 1, resets = c.resets + p_resets, start_offset = least(c.start_offset, p_committed)
    where c.group_id = p_group and c.topic_id = p_topic and c.partition = p_partition
    returning c.epoch into v_epoch;
    select p.* into strict v_last from coordinator.progress p
    where p.group_id = p_group and p.topic_id = p_topic and p.partition = p_partition
    order by p.seq desc limit 1;
    insert into coordinator.progress (group_id, topic_id, partition, seq, epoch, committed, hwm, done, oldest_seq, at)
    values (p_group, p_topic, p_partition, v_last.seq + 1, v_epoch, p_committed, p_committed,
            p_done * int8multirange(int8range(p_committed, null)), v_last.oldest_seq, p_now);
    -- As claim does: of each ten seconds the newest row is history.
    delete from coordinator.progress p
    where p.group_id = p_group and p.topic_id = p_topic and p.partition = p_partition and p.seq = v_last.seq
      and date_bin('10 seconds', v_last.at, 'epoch') = date_bin('10 seconds', p_now, 'epoch');
    update coordinator.retries r set dispatched_epoch = null
    where r.group_id = p_group and r.topic_id = p_topic and r.partition = p_partition and r.dispatched_epoch is not null;
    delete from coordinator.crashes x
    where x.group_id = p_group and x.topic_id = p_topic and x.partition = p_partition and upper(x.offsets) <= p_committed;
    delete from coordinator.pauses p
    where p.group_id = p_group and p.topic_id = p_topic and p.partition = p_partition and p.kind = 'hold';
    perform pg_notify('coordinator.groups', '');
    return v_epoch;
end
$$;
