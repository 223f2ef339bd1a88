create or replace function coordinator.held_offset(p_group int, p_topic int, p_partition int) returns bigint
language sql stable
as $$
    -- The lowest offset of a partition whose message a group may still need: committed, or the oldest parked message that has no
    -- payload of its own. One snapshot for both: an exchange parks a message and passes it in one transaction.
    select least(
        coalesce((select p.committed from coordinator.progress p
                  where p.group_id = p_group and p.topic_id = p_topic and p.partition = p_partition
                  order by p.seq desc limit 1), 0),
        (select min(r."offset") from coordinator.retries r
         where r.group_id = p_group and r.topic_id = p_topic and r.partition = p_partition and r.payload is null))
$$;
