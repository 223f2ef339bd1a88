create or replace function coordinator.skip(
    p_group text,
    p_topic text,
    p_partition int,
    p_offset bigint,
    p_dead_letter boolean default false,
    p_execute boolean default false,
    p_reason text default null,
    out state text,
    out key text,
    out message_id uuid,
    out published_at timestamptz,
    out attempts int,
    out error text,
    out members int,
    out epoch bigint
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- Settles one message that blocks a group: as skipped, or as a dead letter. Without p_execute only looks.
-- Returns: what the message was, parked or open (which includes those that are not read yet); attempts and error: its failures
-- so far; members: live ones that read the topic; epoch: the new one, null without p_execute.
-- Raises: KG003 no such group, topic, partition or message; KG004 it is settled, or the row is held; KG007.
-- Rule (R16): a message with a payload of its own (a replayed dead letter) becomes a dead letter in any case.
-- Locks, race: as seek. The owner, if there is one, loses the partition and takes it again at once: what it holds of it in memory
-- would else be handed over, or written, as if nothing had happened. What else is running there is done again, uncharged.
declare
    v_group int := coordinator.group_id_of(p_group);
    v_now timestamptz := coordinator.now_();
    v_topic coordinator.topics;
    v_last coordinator.progress;
    v_acked int8multirange;
    v_done int8multirange;
    v_committed bigint;
    v_retry coordinator.retries;
begin
    select t.* into v_topic from coordinator.topics t where t.name = p_topic;
    if not found then
        raise exception using errcode = 'KG003', message = format('there is no topic %L', p_topic),
            hint = coordinator.topic_hint(p_topic);
    end if;
    members := coordinator.live_members(v_group, v_topic.topic_id);
    if p_execute then
        perform coordinator.require_read_committed('skip');
        perform coordinator.lock_claim(v_group, p_group, v_topic.topic_id, p_topic, p_partition);
        v_acked := coordinator.fold_acks(v_group, v_topic.topic_id, p_partition);
    else
        select coalesce(range_agg(int8range(a."offset", a."offset" + 1)), '{}') into v_acked from coordinator.acks a
        where a.group_id = v_group and a.topic_id = v_topic.topic_id and a.partition = p_partition;
    end if;
    select p.* into v_last from coordinator.progress p
    where p.group_id = v_group and p.topic_id = v_topic.topic_id and p.partition = p_partition
    order by p.seq desc limit 1;
    if not found then
        raise exception using errcode = 'KG003', message = format(
            'group %L has no partition %s of topic %L', p_group, p_partition, p_topic);
    end if;
    v_done := v_last.done + v_acked * int8multirange(int8range(v_last.committed, null));
    select r.* into v_retry from coordinator.retries r
    where r.group_id = v_group and r.topic_id = v_topic.topic_id and r.partition = p_partition and r."offset" = p_offset;
    if found then
        state := 'parked';
    elsif p_offset < v_last.committed or p_offset <@ v_done then
        raise exception using errcode = 'KG004', message = format(
            'offset %s of partition %s of topic %L is settled in group %L already', p_offset, p_partition, p_topic, p_group);
    else
        state := 'open';
    end if;
    select m.key, m.message_id, m.published_at into key, message_id, published_at
    from coordinator.read_windows(v_topic.topic_id, array[0], array[p_partition], array[p_offset],
                                  array[least(p_offset, 9223372036854775806) + 1]) m;
    if v_retry.payload is not null then
        key := v_retry.key;
        message_id := v_retry.message_id;
        published_at := v_retry.published_at;
    elsif not found then
        raise exception using errcode = 'KG003', message = format(
            'partition %s of topic %L has no message at offset %s', p_partition, p_topic, p_offset),
            hint = 'It is a gap: its transaction is open, or was rolled back. The reader proves which by itself.';
    end if;
    attempts := coalesce(v_retry.fails + v_retry.crashes, 0);
    error := v_retry.errors -> -1 ->> 'error';
    if not p_execute then
        return;
    end if;

    v_done := v_done + int8multirange(int8range(p_offset, p_offset + 1));
    v_committed := lower(int8multirange(int8range(v_last.committed, null)) - v_done);
    epoch := coordinator.fence_claim(v_group, v_topic.topic_id, p_partition, v_committed, v_done, 0, v_now);
    if p_dead_letter or v_retry.payload is not null then
        perform coordinator.bury(v_group, v_topic.topic_id, p_partition, epoch, p_offset, jsonb_build_object(
            'reason', 'skipped', 'attempts', attempts, 'crashes', coalesce(v_retry.crashes, 0), 'guard', false,
            'error', jsonb_build_object('error', coalesce(p_reason, 'skipped by an operator'), 'attempt', attempts)), v_now);
    else
        delete from coordinator.retries r
        where r.group_id = v_group and r.topic_id = v_topic.topic_id and r.partition = p_partition and r."offset" = p_offset;
        insert into coordinator.skips (group_id, topic_id, partition, offsets, reason, skipped_by, note, key, errors, at)
        values (v_group, v_topic.topic_id, p_partition, int8multirange(int8range(p_offset, p_offset + 1)), 'skip', coordinator.actor(),
                p_reason, key, v_retry.errors, v_now);
    end if;
    perform coordinator.record('skip', p_group, v_group, p_topic, v_topic.topic_id, p_partition, p_offset, p_offset + 1, epoch,
                               p_reason, jsonb_build_object('state', state, 'dead_letter', p_dead_letter, 'key', key,
                                                            'message_id', message_id, 'attempts', attempts, 'error', error));
end
$$;
