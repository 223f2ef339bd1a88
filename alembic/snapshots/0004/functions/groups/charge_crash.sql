create or replace function coordinator.charge_crash(p_coordinator uuid, p_ago interval default '0') returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
-- Charges what a dead coordinator may have been running: the open messages of its windows, and the parked ones it handed out.
-- It is an upper bound: which of a window had really started is not durable. If all of that is exactly one message, it was
-- alone, and only then may this crash be its last (R5).
-- p_ago: how long ago it died at the latest; the delays that a charge brings count from then.
-- The plans are pinned to the keys, see settle_hard.
-- Returns: false, and nothing is written, when not all its claims could be locked.
-- Race: computed once, with the claims locked, in the transaction that declares the coordinator dead; takeovers only read it.
declare
    v_at timestamptz := coordinator.now_() - p_ago;
    v_claim record;
    v_open int8multirange;
    v_started bigint := 0;
    v_owned bigint;
    v_locked bigint := 0;
    v_parked bigint;
begin
    select count(*) into v_owned from coordinator.claims c where c.owner = p_coordinator;
    for v_claim in
        select c.group_id, c.topic_id, c.partition, c.epoch from coordinator.claims c
        where c.owner = p_coordinator
        order by c.group_id, c.topic_id, c.partition
        for update of c skip locked
    loop
        v_locked := v_locked + 1;
    end loop;
    if v_locked < v_owned then
        return false;
    end if;
    for v_claim in
        select c.group_id, c.topic_id, c.partition, c.epoch, l.committed, l.hwm, l.done
        from coordinator.claims c
        cross join lateral (
            select p.* from coordinator.progress p
            where p.group_id = c.group_id and p.topic_id = c.topic_id and p.partition = c.partition
            order by p.seq desc limit 1) l
        where c.owner = p_coordinator and l.epoch = c.epoch
        order by c.group_id, c.topic_id, c.partition
    loop
        update coordinator.retries r
        set crashes = r.crashes + 1, dispatched_epoch = null, crashed_by = p_coordinator, alone = false,
            next_at = v_at + make_interval(secs => least(power(2, least(r.crashes, 10)), 300)),
            crash_next_at = v_at + make_interval(secs => least(power(2, least(r.crashes, 10)), 300))
        where r.group_id = v_claim.group_id and r.topic_id = v_claim.topic_id and r.partition = v_claim.partition
          and r.dispatched_epoch = v_claim.epoch
          and not exists (select from coordinator.acks a
                          where a.group_id = r.group_id and a.topic_id = r.topic_id and a.partition = r.partition
                            and a."offset" = r."offset" and a.replay = r.replays);
        get diagnostics v_parked = row_count;
        v_started := v_started + v_parked;
        continue when v_claim.hwm <= v_claim.committed;
        select range_agg(int8range(m."offset", m."offset" + 1)) into v_open
        from coordinator.read_windows(v_claim.topic_id, array[0], array[v_claim.partition], array[v_claim.committed],
                                      array[v_claim.hwm]) m
        where not m."offset" <@ v_claim.done
          and not exists (select from coordinator.acks a
                          where a.group_id = v_claim.group_id and a.topic_id = v_claim.topic_id
                            and a.partition = v_claim.partition and a."offset" = m."offset");
        continue when v_open is null;
        v_started := v_started + coordinator.multirange_size(v_open);
        insert into coordinator.crashes (group_id, topic_id, partition, epoch, coordinator, offsets, alone, at)
        values (v_claim.group_id, v_claim.topic_id, v_claim.partition, v_claim.epoch, p_coordinator, v_open, false, v_at);
    end loop;
    if v_started = 1 then
        update coordinator.crashes x set alone = true where x.coordinator = p_coordinator and x.at = v_at;
        update coordinator.retries r set alone = true where r.crashed_by = p_coordinator and r.dispatched_epoch is null;
    end if;
    return true;
end
$$;
