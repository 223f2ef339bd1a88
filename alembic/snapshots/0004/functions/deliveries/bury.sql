create or replace function coordinator.bury(
    p_group int,
    p_topic int,
    p_partition int,
    p_epoch bigint,
    p_offset bigint,
    p_entry jsonb,
    p_now timestamptz
) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
-- Writes one dead letter and takes the retries row away; the caller settles the offset in the same transaction.
-- A message that dies twice (after a seek, or a replay) keeps one row, whose history grows: by what a seek has kept of it, by what
-- it had failed of since, and by this error (R10).
-- Raises: KG003 when the message is not there: a dead letter without its payload would be a loss.
declare
    v_retry coordinator.retries;
    v_message record;
    v_errors jsonb;
begin
    if (p_entry ->> 'guard')::boolean then
        insert into coordinator.acks (group_id, topic_id, partition, "offset", replay, epoch)
        values (p_group, p_topic, p_partition, p_offset, coalesce((p_entry ->> 'replays')::int, 0), p_epoch)
        on conflict on constraint acks_pkey do nothing;
        if not found then
            delete from coordinator.retries r
            where r.group_id = p_group and r.topic_id = p_topic and r.partition = p_partition and r."offset" = p_offset;
            return;
        end if;
    end if;
    delete from coordinator.retries r
    where r.group_id = p_group and r.topic_id = p_topic and r.partition = p_partition and r."offset" = p_offset
    returning r.* into v_retry;
    if v_retry.payload is not null then
        v_message := v_retry;
    else
        select m.published_at, m.message_id, m.key, m.content_type, m.headers::jsonb as headers, m.payload into v_message
        from coordinator.read_windows(p_topic, array[0], array[p_partition], array[p_offset], array[p_offset + 1]) m;
        if not found then
            raise exception using errcode = 'KG003', message = format(
                'offset %s of partition %s is to become a dead letter, and there is no such message', p_offset, p_partition);
        end if;
    end if;
    delete from coordinator.past_failures f
    where f.group_id = p_group and f.topic_id = p_topic and f.partition = p_partition and f."offset" = p_offset
    returning f.errors into v_errors;
    v_errors := coordinator.append_error(
        coordinator.join_errors(coalesce(v_errors, '[]'), coalesce(v_retry.errors, '[]')), p_entry -> 'error');
    insert into coordinator.dead_letters as d (group_id, topic_id, partition, "offset", key, message_id, published_at,
        content_type, headers, payload, reason, error, attempts, crashes, replays, errors, died_at)
    values (p_group, p_topic, p_partition, p_offset, v_message.key, v_message.message_id, v_message.published_at,
            v_message.content_type, v_message.headers, v_message.payload, p_entry ->> 'reason', p_entry #>> '{error,error}',
            (p_entry ->> 'attempts')::int, (p_entry ->> 'crashes')::int, coalesce(v_retry.replays, (p_entry ->> 'replays')::int, 0),
            v_errors, p_now)
    on conflict on constraint dead_letters_pkey do update
        set reason = excluded.reason, error = excluded.error, attempts = excluded.attempts, crashes = excluded.crashes,
            replays = greatest(d.replays, excluded.replays), died_at = excluded.died_at,
            errors = coordinator.join_errors(d.errors, excluded.errors);
    perform pg_notify('coordinator.dead_letters', '');
end
$$;
