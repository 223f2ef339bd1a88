create or replace function coordinator.ack_kept(
    p_group int,
    p_topic int,
    p_partition int,
    p_epoch bigint,
    p_offset bigint,
    p_replay int
) returns boolean
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
    -- Is an ack of a handler's transaction there? Asked when its outcome is said to be committed: a number that had not reached
    -- the disk is given out again after a crash, and then the outcome is that of another transaction.
    -- The acks row stays as long as a run of the message is alive in its epoch; a change of epoch folds it into the progress.
    select exists (select from coordinator.acks a
                   where a.group_id = p_group and a.topic_id = p_topic and a.partition = p_partition
                     and a."offset" = p_offset and a.replay = p_replay and a.epoch = p_epoch)
        or exists (select from coordinator.claims c
                   cross join lateral (
                       select p.committed, p.done from coordinator.progress p
                       where p.group_id = c.group_id and p.topic_id = c.topic_id and p.partition = c.partition
                       order by p.seq desc limit 1) p
                   where c.group_id = p_group and c.topic_id = p_topic and c.partition = p_partition and c.epoch <> p_epoch
                     and (p_offset < p.committed or p_offset <@ p.done)
                     and not exists (select from coordinator.retries r
                                     where r.group_id = p_group and r.topic_id = p_topic and r.partition = p_partition
                                       and r."offset" = p_offset))
$$;
