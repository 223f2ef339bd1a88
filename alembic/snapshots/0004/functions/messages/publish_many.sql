create or replace function coordinator.publish_many(
    p_topic text,
    p_payloads bytea[],
    p_keys text[] default null,
    p_headers text[] default null,
    p_message_ids uuid[] default null,
    p_content_types text[] default null,
    p_partitions int[] default null,
    p_wake boolean default true,
    p_dedup_keys text[] default null,
    p_on_duplicate text default 'return',
    p_delays_s double precision[] default null,
    p_deliver_ats timestamptz[] default null,
    out partitions int[],
    out offsets bigint[],
    out message_ids uuid[],
    out duplicates boolean[],
    out due_ats timestamptz[]
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set quote_all_identifiers = off
as $$
-- Publishes a batch in the caller's transaction, at any isolation level; order within the batch is kept per partition.
-- Arrays are parallel; p_headers holds JSON objects or null; a null content type means application/json; a null place in
-- p_partitions means "by key", a null key means one partition, picked at random, for all such messages of the call.
-- A message with a dedup key (or, on a topic with a dedup window, with a message id) that was used within the window is not
-- published again: p_on_duplicate says whether the first one's place is returned or KG010 raised ('checked' is for calls from
-- here: the keys were looked at). A message with a delay, or a time ahead, is put into scheduled instead.
-- Returns: parallel arrays of what was assigned; duplicates and due_ats are null where there are none, partitions and
-- offsets hold nulls for messages that wait for their time.
-- Raises: KG003 no such topic; KG005 arrays of unequal length or with odd bounds, wrong partition, null payload, bad headers; KG006 too large;
-- KG008 the topic names who may publish, and the caller is not among them;
-- KG009 the topic's groups are too far behind; KG010 a repeated key; KG013 the topic was deleted meanwhile.
-- Locks: shared advisory ones (enlist_publisher); never one that another publisher waits for, but for dedup keys, which
-- are taken before anything else (reserve_dedup_keys).
-- Race: the order of the steps is the guarantee. Locks before offsets: see enlist_publisher. The segment is read
-- before and after the offsets are taken and both must agree: then offset order implies segment order, and a
-- reader that has passed a segment has passed all its offsets. A rotation in between burns the offsets taken.
declare
    v_topic coordinator.topics;
    v_count int := coalesce(cardinality(p_payloads), 0);
    v_segment bigint;
    v_at timestamptz;
    v_any int;
    v_bad bigint;
    v_bounds text;
begin
    select t.* into v_topic from coordinator.topics t where t.name = p_topic;
    if not found then
        raise exception using errcode = 'KG003', message = format('there is no topic %L', p_topic),
            hint = coordinator.topic_hint(p_topic);
    end if;
    if v_topic.publish_roles is not null and not coordinator.may(v_topic.publish_roles) then
        raise exception using errcode = 'KG008', message = format('role %s may not publish to topic %L', coordinator.actor(), p_topic),
            hint = 'An operator can allow it: coordinator topics rights NAME --publish ROLE';
    end if;
    if v_count = 0 then
        partitions := '{}'; offsets := '{}'; message_ids := '{}';
        return;
    end if;
    if coalesce(cardinality(p_keys), v_count) <> v_count or coalesce(cardinality(p_headers), v_count) <> v_count
       or coalesce(cardinality(p_message_ids), v_count) <> v_count
       or coalesce(cardinality(p_content_types), v_count) <> v_count
       or coalesce(cardinality(p_partitions), v_count) <> v_count then
        raise exception using errcode = 'KG005', message = format(
            'arrays of unequal length: %s payloads, %s keys, %s headers, %s message ids, %s content types, %s partitions',
            v_count, cardinality(p_keys), cardinality(p_headers), cardinality(p_message_ids), cardinality(p_content_types),
            cardinality(p_partitions));
    end if;

    if v_count = 1 then
        -- Below they are read at place 1, where other bounds would hold nothing, without a word.
        v_bounds := concat_ws(' ', array_dims(p_payloads), array_dims(p_keys), array_dims(p_headers), array_dims(p_message_ids),
                              array_dims(p_content_types), array_dims(p_partitions), array_dims(p_dedup_keys),
                              array_dims(p_delays_s), array_dims(p_deliver_ats));
        if replace(' ' || v_bounds, ' [1:1]', '') <> '' then
            raise exception using errcode = 'KG005', message = format(
                'arrays of one message: wanted bounds [1:1] for each, or null, found %s', v_bounds);
        end if;
        v_bad := octet_length(p_payloads[1]);
        if v_bad is null then
            raise exception using errcode = 'KG005', message = 'the payload is null; publish the JSON text null, or zero bytes';
        end if;
        partitions := array[coalesce(p_partitions[1], coordinator.partition_of(p_keys[1], v_topic.partitions),
                                     floor(random() * v_topic.partitions)::int)];
    else
        if array_position(p_payloads, null) is not null then
            raise exception using errcode = 'KG005', message = format(
                'payload %s of %s is null; publish the JSON text null, or zero bytes', array_position(p_payloads, null), v_count);
        end if;
        v_bad := (select max(octet_length(u.p)) from unnest(p_payloads) as u(p));
        v_any := floor(random() * v_topic.partitions)::int;
        if p_partitions is null and p_keys is null then
            partitions := array_fill(v_any, array[v_count]);
        else
            partitions := array(select coalesce(u.partition, coordinator.partition_of(u.key, v_topic.partitions), v_any)
                                from unnest(p_partitions, p_keys, p_payloads) as u(partition, key, payload));
        end if;
    end if;
    if v_bad > v_topic.max_message_bytes then
        raise exception using errcode = 'KG006', message = format(
            'a payload of %s bytes is over the limit of topic %L, %s bytes', v_bad, p_topic, v_topic.max_message_bytes);
    end if;
    if p_partitions is not null then
        v_bad := (select u.p from unnest(partitions) as u(p) where u.p < 0 or u.p >= v_topic.partitions limit 1);
        if v_bad is not null then
            raise exception using errcode = 'KG005', message = format(
                'topic %L has partitions 0 to %s, found %s', p_topic, v_topic.partitions - 1, v_bad);
        end if;
    end if;

    if p_headers is not null then
        v_any := (select u.n from unnest(p_headers) with ordinality as u(h, n)
                  where u.h is not null and left(ltrim(u.h), 1) <> '{' limit 1);
        if v_any is not null then
            raise exception using errcode = 'KG005', message = format(
                'headers %s of %s are no JSON object: %s', v_any, v_count, left(p_headers[v_any], 100));
        end if;
    end if;

    if (p_dedup_keys is not null or p_delays_s is not null or p_deliver_ats is not null
        or v_topic.dedup_window_s is not null and p_message_ids is not null) and p_on_duplicate is distinct from 'checked' then
        select s.* into partitions, offsets, message_ids, duplicates, due_ats
        from coordinator.publish_selected(v_topic, p_payloads, p_keys, p_headers, p_message_ids, p_content_types, p_partitions,
                                          p_wake, p_dedup_keys, p_on_duplicate, p_delays_s, p_deliver_ats) s;
        return;
    end if;
    if v_topic.max_backlog is not null then
        perform coordinator.check_backlog(v_topic, v_count);
    end if;
    perform coordinator.enlist_publisher(v_topic, partitions);
    loop
        v_segment := pg_sequence_last_value(v_topic.segment_sequence);
        -- Before the offsets, and one for all: then no message bears a later time than those far above it; see offset_at.
        v_at := coordinator.now_();
        if v_count = 1 then
            offsets := array[nextval(v_topic.offset_sequences[partitions[1] + 1])];
        else
            offsets := array(select nextval(v_topic.offset_sequences[u.p + 1]) from unnest(partitions) as u(p));
        end if;
        exit when v_segment = pg_sequence_last_value(v_topic.segment_sequence);
    end loop;

    if v_count = 1 then
        message_ids := array[coalesce(p_message_ids[1], gen_random_uuid())];
        execute format('insert into %s_s%s values ($1, $2, $3, $4, $5, $6, $7, $8::jsonb, $9)',
                       v_topic.messages, v_segment)
        using v_segment::int, partitions[1], offsets[1], v_at, message_ids[1], p_keys[1], p_content_types[1], p_headers[1], p_payloads[1];
    else
        message_ids := coalesce(p_message_ids, array(select gen_random_uuid() from generate_series(1, v_count)));
        if p_message_ids is not null and array_position(p_message_ids, null) is not null then
            message_ids := array(select coalesce(u.id, gen_random_uuid()) from unnest(p_message_ids) as u(id));
        end if;
        execute format('insert into %s_s%s select $1, u.partition, u."offset", $2, u.id, u.key, '
                       'u.content_type, u.headers::jsonb, u.payload from unnest($3, $4, $5, $6, $7, $8, $9) '
                       'as u(partition, "offset", id, key, content_type, headers, payload)', v_topic.messages, v_segment)
        using v_segment::int, v_at, partitions, offsets, message_ids, p_keys, p_content_types, p_headers, p_payloads;
    end if;
    if v_topic.wake and p_wake then
        perform coordinator.wake_readers(v_topic);
    end if;
end
$$;
