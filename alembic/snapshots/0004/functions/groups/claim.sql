create or replace function coordinator.claim(
    p_coordinator uuid,
    p_groups int[],
    p_topics int[],
    p_partitions int[],
    p_hand_over_s double precision default null
) returns table (
    group_id int, topic_id int, "partition" int, epoch bigint, seq bigint, committed bigint, done text, takeover boolean,
    crashes jsonb, parked jsonb, forced boolean
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- Takes those of the wanted partitions that nobody alive owns, or that the caller owns already; each gets a new epoch.
-- p_hand_over_s: also those that have been meant for the caller for so long, from whoever has not handed them over (forced). That
-- one lives: it is fenced there, and charged with nothing.
-- Returns: one row per claim taken. takeover says that its last owner did not release it. crashes, newest first:
-- [[offsets as int8multirange, alone, age in seconds]]; parked: [[offset, key]], null for none.
-- Acks that handlers made in their own transactions are folded first: they outrank retries and charges (R15).
-- Raises: KG002, KG012 the caller is dead, or replaced.
-- Locks: the caller's coordinator row FOR KEY SHARE, then claim rows in key order FOR UPDATE SKIP LOCKED, then UPDATE. A
-- plain UPDATE takes NO KEY UPDATE only, and would not wait for a transactional ack that holds KEY SHARE; SKIP LOCKED over
-- a CTE would lock nothing.
-- Race: an owner is judged by its row in coordinators, which only reap sets to dead, under FOR UPDATE.
declare
    v_claim record;
    v_last record;
    v_acked int8multirange;
begin
    perform coordinator.check_subscribe(p_topics);
    perform coordinator.require_read_committed('claim');
    perform 1 from coordinator.coordinators c where c.coordinator = p_coordinator and c.state in ('alive', 'draining') for key share;
    if not found then
        perform coordinator.raise_dead(p_coordinator);
    end if;
    for v_claim in
        select c.group_id, c.topic_id, c.partition, c.epoch, c.owner
        from coordinator.claims c
        join unnest(p_groups, p_topics, p_partitions) as w(group_id, topic_id, partition)
          on c.group_id = w.group_id and c.topic_id = w.topic_id and c.partition = w.partition
        where c.owner is null or c.owner = p_coordinator
           or not exists (select from coordinator.coordinators o where o.coordinator = c.owner and o.state <> 'dead')
           or exists (select from coordinator.targets t
                      where t.group_id = c.group_id and t.topic_id = c.topic_id and t.partition = c.partition
                        and t.coordinator = p_coordinator
                        and t.assigned_at <= coordinator.now_() - make_interval(secs => p_hand_over_s))
        order by c.group_id, c.topic_id, c.partition
        for update of c skip locked
    loop
        update coordinator.claims c
        set owner = p_coordinator, epoch = c.epoch + 1, claimed_at = coordinator.now_()
        where c.group_id = v_claim.group_id and c.topic_id = v_claim.topic_id and c.partition = v_claim.partition;
        select p.* into strict v_last from coordinator.progress p
        where p.group_id = v_claim.group_id and p.topic_id = v_claim.topic_id and p.partition = v_claim.partition
        order by p.seq desc limit 1;
        v_acked := coordinator.fold_acks(v_claim.group_id, v_claim.topic_id, v_claim.partition);
        -- Not cut at hwm: a release has lowered it to committed, and the acks above it stand.
        v_acked := v_last.done + v_acked * int8multirange(int8range(v_last.committed, null));
        v_last.committed := lower(int8multirange(int8range(v_last.committed, null)) - v_acked);
        v_last.done := v_acked * int8multirange(int8range(v_last.committed, null));
        insert into coordinator.progress (group_id, topic_id, partition, seq, epoch, committed, hwm, done, oldest_seq, at)
        values (v_claim.group_id, v_claim.topic_id, v_claim.partition, v_last.seq + 1, v_claim.epoch + 1,
                v_last.committed, v_last.committed, v_last.done, v_last.oldest_seq, coordinator.now_());
        -- As exchange does: of each ten seconds the newest row is history. Short-lived owners must not make it grow.
        delete from coordinator.progress p
        where p.group_id = v_claim.group_id and p.topic_id = v_claim.topic_id and p.partition = v_claim.partition
          and p.seq = v_last.seq
          and date_bin('10 seconds', v_last.at, 'epoch') = date_bin('10 seconds', coordinator.now_(), 'epoch');
        -- The message ahead of these was acked by a handler: nobody else would wake them.
        update coordinator.retries r set behind_key = false, next_at = coordinator.now_()
        where r.group_id = v_claim.group_id and r.topic_id = v_claim.topic_id and r.partition = v_claim.partition
          and r.behind_key
          and not exists (select from coordinator.retries h
                          where h.group_id = r.group_id and h.topic_id = r.topic_id and h.partition = r.partition
                            and h.key = r.key and not h.behind_key and h."offset" < r."offset");
        delete from coordinator.crashes x
        where x.group_id = v_claim.group_id and x.topic_id = v_claim.topic_id and x.partition = v_claim.partition
          and upper(x.offsets) <= v_last.committed;
        group_id := v_claim.group_id;
        topic_id := v_claim.topic_id;
        "partition" := v_claim.partition;
        epoch := v_claim.epoch + 1;
        seq := v_last.seq + 1;
        committed := v_last.committed;
        done := v_last.done::text;
        takeover := v_claim.owner is not null;
        forced := v_claim.owner <> p_coordinator
            and exists (select from coordinator.coordinators o where o.coordinator = v_claim.owner and o.state <> 'dead');
        crashes := (select jsonb_agg(jsonb_build_array(x.offsets::text, x.alone, extract(epoch from coordinator.now_() - x.at))
                                     order by x.epoch desc)
                    from coordinator.crashes x
                    where x.group_id = v_claim.group_id and x.topic_id = v_claim.topic_id
                      and x.partition = v_claim.partition);
        parked := (select jsonb_agg(jsonb_build_array(r."offset", r.key) order by r."offset")
                   from coordinator.retries r
                   where r.group_id = v_claim.group_id and r.topic_id = v_claim.topic_id
                     and r.partition = v_claim.partition);
        return next;
    end loop;
end
$$;
