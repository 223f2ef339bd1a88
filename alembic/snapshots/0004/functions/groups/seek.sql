create or replace function coordinator.seek(
    p_group text,
    p_topic text,
    p_partition int,
    p_to text,
    p_offset bigint default null,
    p_time timestamptz default null,
    p_force boolean default false,
    p_execute boolean default false,
    p_reason text default null,
    out from_offset bigint,
    out wanted_offset bigint,
    out to_offset bigint,
    out log_start_offset bigint,
    out log_end_offset bigint,
    out members int,
    out skipped bigint,
    out parked int,
    out dead_letters int,
    out epoch bigint
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- Moves one partition of a group: what lies at or above the target will be delivered (again), what lies below will not.
-- p_to: earliest, latest, offset (p_offset), shift (committed + p_offset) or time (p_time). Without p_execute nothing is changed.
-- Returns: from where to where; wanted is the target before it was clamped to [log start, log end]; skipped: offsets that are
-- passed unsettled, those of open and rolled-back transactions included; parked: retries rows, and dead_letters: letters, that
-- are taken back; epoch: the new one, null without p_execute.
-- Raises: KG003 no such group, topic or partition; KG004 members are live and p_force is not given, or the row is held;
-- KG005 no such p_to; KG007 another isolation level.
-- Rules (R9, R16): done is emptied. Retries rows at or above the target go, and so do dead letters, as their messages come again;
-- how they had failed is kept in past_failures. Rows below the target stay, but for those that a seek forwards passes: each is
-- recorded as skipped. A row with a payload (a replayed dead letter) becomes a dead letter again where it is passed, or where
-- the log has its message no more.
-- Locks: the topics row FOR SHARE; unforced the groups row FOR SHARE, so that nobody joins meanwhile; the claim's row FOR UPDATE; then acks, retries,
-- crashes, dead_letters. Call hold before, in a transaction of its own; one partition in a transaction.
-- Race: the epoch rises, so a late exchange is fenced; a transactional ack either holds KEY SHARE, and is waited for and folded,
-- or comes later, and is refused.
declare
    v_group int := coordinator.group_id_of(p_group);
    v_now timestamptz := coordinator.now_();
    v_topic coordinator.topics;
    v_last coordinator.progress;
    v_acked int8multirange;
    v_done int8multirange;
    v_kept int8multirange := '{}';
    v_passed int8multirange;
    v_row coordinator.retries;
    v_passing boolean;
begin
    if p_to is null or p_to not in ('earliest', 'latest', 'offset', 'shift', 'time')
       or (p_to in ('offset', 'shift')) <> (p_offset is not null) or (p_to = 'time') <> (p_time is not null) then
        raise exception using errcode = 'KG005', message = format(
            'a seek goes to earliest, latest, offset or shift with a number, or time with a time; found %L with %L and %L',
            p_to, p_offset, p_time);
    end if;
    select t.* into v_topic from coordinator.topics t where t.name = p_topic;
    if not found then
        raise exception using errcode = 'KG003', message = format('there is no topic %L', p_topic),
            hint = coordinator.topic_hint(p_topic);
    end if;
    if p_execute then
        perform coordinator.require_read_committed('seek');
        -- Retention moves the start of the log under this row's lock, having looked where groups stand.
        select t.* into v_topic from coordinator.topics t where t.topic_id = v_topic.topic_id for share;
        if not p_force then
            perform 1 from coordinator.groups g where g.group_id = v_group for share;
        end if;
    end if;
    members := coordinator.live_members(v_group, v_topic.topic_id);
    if p_execute then
        if members > 0 and not p_force then
            raise exception using errcode = 'KG004',
                message = format('group %L has %s live members that read %L', p_group, members, p_topic),
                hint = 'Stop them first, or force it: they lose the partition, and what they are doing there is done again.';
        end if;
        perform coordinator.lock_claim(v_group, p_group, v_topic.topic_id, p_topic, p_partition);
    end if;
    select p.* into v_last from coordinator.progress p
    where p.group_id = v_group and p.topic_id = v_topic.topic_id and p.partition = p_partition
    order by p.seq desc limit 1;
    if not found then
        raise exception using errcode = 'KG003', message = format(
            'group %L has no partition %s of topic %L', p_group, p_partition, p_topic);
    end if;
    if p_execute then
        v_acked := coordinator.fold_acks(v_group, v_topic.topic_id, p_partition);
    else
        select coalesce(range_agg(int8range(a."offset", a."offset" + 1)), '{}') into v_acked from coordinator.acks a
        where a.group_id = v_group and a.topic_id = v_topic.topic_id and a.partition = p_partition;
    end if;
    v_done := v_last.done + v_acked * int8multirange(int8range(v_last.committed, null));
    from_offset := lower(int8multirange(int8range(v_last.committed, null)) - v_done);
    log_end_offset := coordinator.high_offset(v_topic.topic_id, p_partition) + 1;
    log_start_offset := least(coordinator.log_start(v_topic.topic_id, p_partition), log_end_offset);
    wanted_offset := case p_to
        when 'earliest' then log_start_offset
        when 'latest' then log_end_offset
        when 'offset' then p_offset
        when 'shift' then from_offset + p_offset
        else coordinator.offset_at(v_topic.topic_id, p_partition, p_time) end;
    to_offset := least(greatest(wanted_offset, log_start_offset), log_end_offset);

    -- What is passed: neither settled nor parked, and each parked message.
    v_passed := int8multirange(int8range(from_offset, greatest(to_offset, from_offset))) - v_done;
    skipped := coordinator.multirange_size(v_passed);
    select count(*) into parked from coordinator.retries r
    where r.group_id = v_group and r.topic_id = v_topic.topic_id and r.partition = p_partition
      and r."offset" >= least(from_offset, to_offset);
    select count(*) into dead_letters from coordinator.dead_letters d
    where d.group_id = v_group and d.topic_id = v_topic.topic_id and d.partition = p_partition and d."offset" >= to_offset;
    skipped := skipped + (
        select count(*) from coordinator.retries r
        where r.group_id = v_group and r.topic_id = v_topic.topic_id and r.partition = p_partition
          and r."offset" >= from_offset and r."offset" < to_offset);
    if not p_execute then
        return;
    end if;

    delete from coordinator.skips s
    where s.group_id = v_group and s.topic_id = v_topic.topic_id and s.partition = p_partition
      and lower(s.offsets) >= to_offset;
    update coordinator.skips s set offsets = s.offsets * int8multirange(int8range(null, to_offset))
    where s.group_id = v_group and s.topic_id = v_topic.topic_id and s.partition = p_partition
      and upper(s.offsets) > to_offset;
    if v_passed <> '{}' then
        insert into coordinator.skips (group_id, topic_id, partition, offsets, reason, skipped_by, note, at)
        values (v_group, v_topic.topic_id, p_partition, v_passed, 'seek', coordinator.actor(), p_reason, v_now);
    end if;
    for v_row in
        delete from coordinator.retries r
        where r.group_id = v_group and r.topic_id = v_topic.topic_id and r.partition = p_partition
          and r."offset" >= least(from_offset, to_offset)
        returning r.*
    loop
        v_passing := v_row."offset" < to_offset or not coordinator.in_log(v_topic, p_partition, v_row."offset");
        if v_passing and v_row.payload is null then
            insert into coordinator.skips (group_id, topic_id, partition, offsets, reason, skipped_by, note, key, errors, at)
            values (v_group, v_topic.topic_id, p_partition, int8multirange(int8range(v_row."offset", v_row."offset" + 1)), 'seek',
                    coordinator.actor(), p_reason, v_row.key, v_row.errors, v_now);
        elsif v_passing then
            perform coordinator.return_letter(v_row, 'skipped', v_now);
        else
            perform coordinator.remember_failures(v_row.group_id, v_row.topic_id, v_row.partition, v_row."offset",
                                                  v_row.errors, v_now);
        end if;
    end loop;
    with closed as (
        delete from coordinator.dead_letters d
        where d.group_id = v_group and d.topic_id = v_topic.topic_id and d.partition = p_partition
          and d."offset" >= to_offset and coordinator.in_log(v_topic, p_partition, d."offset")
        returning d."offset", d.errors
    ) select count(*) into dead_letters
    from closed c
    cross join lateral coordinator.remember_failures(v_group, v_topic.topic_id, p_partition, c."offset", c.errors, v_now);
    select coalesce(range_agg(int8range(d."offset", d."offset" + 1)), '{}') into v_kept from coordinator.dead_letters d
    where d.group_id = v_group and d.topic_id = v_topic.topic_id and d.partition = p_partition and d."offset" >= to_offset;
    delete from coordinator.crashes x
    where x.group_id = v_group and x.topic_id = v_topic.topic_id and x.partition = p_partition;
    epoch := coordinator.fence_claim(
        v_group, v_topic.topic_id, p_partition, lower(int8multirange(int8range(to_offset, null)) - v_kept), v_kept, 1, v_now);
    perform coordinator.record('seek', p_group, v_group, p_topic, v_topic.topic_id, p_partition, from_offset, to_offset, epoch, p_reason,
                               jsonb_build_object('to', p_to, 'offset', p_offset, 'time', p_time, 'wanted', wanted_offset,
                                                  'members', members, 'skipped', skipped, 'parked', parked,
                                                  'dead_letters', dead_letters));
end
$$;
