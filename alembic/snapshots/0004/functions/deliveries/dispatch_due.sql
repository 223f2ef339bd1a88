create or replace function coordinator.dispatch_due(
    p_coordinator uuid,
    p_groups int[],
    p_topics int[],
    p_partitions int[],
    p_epochs bigint[],
    p_limits int[],
    p_ages double precision[] default null
) returns table (ord int, due_in_s double precision)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
-- Hands out parked messages that are due: stamps them with the epoch, in the transaction of the exchange. Read from the table
-- and not from memory alone, since replays and takeovers put rows there (R17).
-- p_ages: per claim, what became due longer ago than so many seconds is not looked at; null or -1 looks at all.
-- Returns: per claim the time until its next parked message is due; null where none waits. The rows come with fetch_retries.
-- Raises: KG007 at another isolation level.
-- Locks: the claims that have something due, FOR NO KEY UPDATE SKIP LOCKED.
-- The index is read once for each claim, before the lock: its first entries are those of messages that are gone, which vacuum can't
-- take away while somebody holds an old snapshot, and each reading passes over all of them. Who knows that nothing older is there
-- says so by p_ages. The plan is pinned to the index by time: statistics of a table that is mostly empty tell nothing, and by its primary
-- key all would be read and sorted.
declare
    v_now timestamptz := coordinator.now_();
    v_claim record;
    v_due bigint[];
begin
    perform coordinator.check_subscribe(p_topics);
    perform coordinator.require_read_committed('dispatch_due');
    for v_claim in
        select w.*, d.offsets, d.times, d.due_count
        from unnest(p_groups, p_topics, p_partitions, p_epochs, p_limits, p_ages)
             with ordinality as w(group_id, topic_id, partition, epoch, max_count, age_s, ord)
        cross join lateral (
            select array_agg(n."offset" order by n.next_at, n."offset") as offsets,
                   array_agg(n.next_at order by n.next_at, n."offset") as times,
                   count(*) filter (where n.next_at <= v_now) as due_count
            from (select r."offset", r.next_at from coordinator.retries r
                  where r.group_id = w.group_id and r.topic_id = w.topic_id and r.partition = w.partition
                    and not r.behind_key and r.dispatched_epoch is distinct from w.epoch
                    and r.next_at >= coalesce(v_now - make_interval(secs => nullif(w.age_s, -1)), '-infinity')
                  order by r.next_at, r."offset" limit greatest(w.max_count, 0) + 1) n) d
        order by w.ord
    loop
        ord := v_claim.ord;
        v_due := v_claim.offsets[1:least(v_claim.due_count, greatest(v_claim.max_count, 0))];
        if cardinality(v_due) > 0 then
            perform 1 from coordinator.claims c
            where c.group_id = v_claim.group_id and c.topic_id = v_claim.topic_id and c.partition = v_claim.partition
              and c.owner = p_coordinator and c.epoch = v_claim.epoch
            for no key update skip locked;
            if not found then
                v_due := '{}';
            end if;
            -- What was taken away meanwhile is not there; what was put back meanwhile is not due, or waits for the next look.
            update coordinator.retries r set dispatched_epoch = v_claim.epoch
            where r.group_id = v_claim.group_id and r.topic_id = v_claim.topic_id and r.partition = v_claim.partition
              and r."offset" = any (v_due)
              and not r.behind_key and r.next_at <= v_now and r.dispatched_epoch is distinct from v_claim.epoch;
        end if;
        due_in_s := extract(epoch from v_claim.times[cardinality(v_due) + 1] - v_now);
        return next;
    end loop;
end
$$;
