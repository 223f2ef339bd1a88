create or replace function coordinator.dispatch_due(
    p_coordinator uuid,
    p_groups int[],
    p_topics int[],
    p_partitions int[],
    p_epochs bigint[],
    p_limits int[]
) returns table (ord int, due_in_s double precision)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- Hands out parked messages that are due: stamps them with the epoch, in the transaction of the exchange. Read from the table
-- and not from memory alone, since replays and takeovers put rows there (R17).
-- Returns: per claim the time until its next parked message is due; null where none waits. The rows come with fetch_retries.
-- Raises: KG007 at another isolation level.
-- Locks: the claims that have something due, FOR NO KEY UPDATE SKIP LOCKED.
declare
    v_now timestamptz := coordinator.now_();
    v_claim record;
begin
    perform coordinator.check_subscribe(p_topics);
    perform coordinator.require_read_committed('dispatch_due');
    for v_claim in
        select w.*
        from coordinator.claims c
        join unnest(p_groups, p_topics, p_partitions, p_epochs, p_limits)
             with ordinality as w(group_id, topic_id, partition, epoch, max_count, ord)
          on c.group_id = w.group_id and c.topic_id = w.topic_id and c.partition = w.partition
        where c.owner = p_coordinator and c.epoch = w.epoch and w.max_count > 0
          and exists (select from coordinator.retries r
                      where r.group_id = w.group_id and r.topic_id = w.topic_id and r.partition = w.partition
                        and not r.behind_key and r.next_at <= v_now and r.dispatched_epoch is distinct from w.epoch)
        order by c.group_id, c.topic_id, c.partition
        for no key update of c skip locked
    loop
        -- An array, as in wake_behind.
        update coordinator.retries r set dispatched_epoch = v_claim.epoch
        where r.group_id = v_claim.group_id and r.topic_id = v_claim.topic_id and r.partition = v_claim.partition
          and r."offset" = any (array(
              select d."offset" from coordinator.retries d
              where d.group_id = v_claim.group_id and d.topic_id = v_claim.topic_id and d.partition = v_claim.partition
                and not d.behind_key and d.next_at <= v_now and d.dispatched_epoch is distinct from v_claim.epoch
              order by d.next_at, d."offset" limit v_claim.max_count));
    end loop;
    return query
    select w.ord::int, extract(epoch from n.next_at - v_now)::double precision
    from unnest(p_groups, p_topics, p_partitions, p_epochs) with ordinality as w(group_id, topic_id, partition, epoch, ord)
    left join lateral (
        select min(r.next_at) as next_at from coordinator.retries r
        where r.group_id = w.group_id and r.topic_id = w.topic_id and r.partition = w.partition
          and not r.behind_key and r.dispatched_epoch is distinct from w.epoch) n on true
    order by w.ord;
end
$$;
