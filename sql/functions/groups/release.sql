create or replace function coordinator.release(
    p_coordinator uuid,
    p_groups int[],
    p_topics int[],
    p_partitions int[],
    p_epochs bigint[]
) returns int
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- Gives claims back, in the transaction of their last exchange; what is open becomes future again and is charged to nobody.
-- Returns: how many were released; those of another epoch, or locked by somebody else, are left alone.
-- Locks: the claims' rows in key order, SKIP LOCKED.
declare
    v_claim record;
    v_count int := 0;
begin
    perform coordinator.require_read_committed('release');
    for v_claim in
        select c.group_id, c.topic_id, c.partition, c.epoch
        from coordinator.claims c
        join unnest(p_groups, p_topics, p_partitions, p_epochs) as w(group_id, topic_id, partition, epoch)
          on c.group_id = w.group_id and c.topic_id = w.topic_id and c.partition = w.partition and c.epoch = w.epoch
        where c.owner = p_coordinator
        order by c.group_id, c.topic_id, c.partition
        for no key update of c skip locked
    loop
        update coordinator.retries r set dispatched_epoch = null
        where r.group_id = v_claim.group_id and r.topic_id = v_claim.topic_id and r.partition = v_claim.partition
          and r.dispatched_epoch is not null;
        insert into coordinator.progress (group_id, topic_id, partition, seq, epoch, committed, hwm, done, oldest_seq, at)
        select p.group_id, p.topic_id, p.partition, p.seq + 1, p.epoch, p.committed, p.committed, p.done, p.oldest_seq,
               coordinator.now_()
        from coordinator.progress p
        where p.group_id = v_claim.group_id and p.topic_id = v_claim.topic_id and p.partition = v_claim.partition
        order by p.seq desc limit 1;
        delete from coordinator.progress p
        using coordinator.progress n
        where n.group_id = v_claim.group_id and n.topic_id = v_claim.topic_id and n.partition = v_claim.partition
          and p.group_id = n.group_id and p.topic_id = n.topic_id and p.partition = n.partition and p.seq = n.seq - 1
          and n.seq = (select max(x.seq) from coordinator.progress x
                       where x.group_id = n.group_id and x.topic_id = n.topic_id and x.partition = n.partition)
          and date_bin('10 seconds', p.at, 'epoch') = date_bin('10 seconds', n.at, 'epoch');
        update coordinator.claims c set owner = null
        where c.group_id = v_claim.group_id and c.topic_id = v_claim.topic_id and c.partition = v_claim.partition;
        v_count := v_count + 1;
    end loop;
    if v_count > 0 then
        perform pg_notify('coordinator.groups', '');
    end if;
    return v_count;
end
$$;
