create or replace function coordinator.publish_selected(
    p_topic coordinator.topics,
    p_payloads bytea[],
    p_keys text[],
    p_headers text[],
    p_message_ids uuid[],
    p_content_types text[],
    p_partitions int[],
    p_wake boolean,
    p_dedup_keys text[],
    p_on_duplicate text,
    p_delays_s double precision[],
    p_deliver_ats timestamptz[],
    out partitions int[],
    out offsets bigint[],
    out message_ids uuid[],
    out duplicates boolean[],
    out due_ats timestamptz[]
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_nestloop = off
as $$
-- The rest of publish_many for batches with dedup keys or times: divides them into repeated messages, those for later and
-- those for now, and gives the last to publish_many. Returns, raises: as publish_many.
-- Plans: arrays are joined by hash; a plan made for a call of one message would take a second for a thousand.
-- Order: keys before offsets. Who waits for another publisher's key has taken no offset yet, so no reader waits for it.
declare
    v_count int := cardinality(p_payloads);
    v_filler int[] := array_fill(0, array[cardinality(p_payloads)]);
    v_now timestamptz := coordinator.now_();
    v_dedup_keys text[];
    v_reserved text[];
    v_bad record;
    v_time timestamptz;
    v_now_places int[];
    v_sent record;
begin
    if coalesce(cardinality(p_dedup_keys), v_count) <> v_count or coalesce(cardinality(p_delays_s), v_count) <> v_count
       or coalesce(cardinality(p_deliver_ats), v_count) <> v_count then
        raise exception using errcode = 'KG005', message = format(
            'arrays of unequal length: %s payloads, %s dedup keys, %s delays, %s times', v_count, cardinality(p_dedup_keys),
            cardinality(p_delays_s), cardinality(p_deliver_ats));
    end if;
    if p_on_duplicate is null or p_on_duplicate not in ('return', 'raise') then
        raise exception using errcode = 'KG005', message = format('on_duplicate is return or raise, found %L', p_on_duplicate);
    end if;
    select u.n, u.delay_s, u.at, u.key into v_bad
    from unnest(p_delays_s, p_deliver_ats, p_dedup_keys) with ordinality as u(delay_s, at, key, n)
    -- What Python's datetime can't hold would keep everybody's list of what is scheduled from being read.
    where u.delay_s is not null and u.at is not null or u.at = '-infinity' or u.at >= '9999-01-01 00:00:00+00'
       or not u.delay_s between -3.2e9 and 3.2e9 or octet_length(u.key) > 1024
    limit 1;
    if found then
        raise exception using errcode = 'KG005', message = format(
            'message %s: wanted a delay of at most 100 years or a time before the year 9999, not both, and a dedup key of at most 1024 bytes; '
            'found delay %s, time %s and a key of %s bytes',
            v_bad.n - 1, coalesce(v_bad.delay_s::text, 'none'), coalesce(v_bad.at::text, 'none'),
            coalesce(octet_length(v_bad.key), 0));
    end if;

    -- One message for now whose key, if any, is new: what nearly every call is, in a third of the time.
    if v_count = 1 then
        message_ids := array[coalesce(p_message_ids[1], gen_random_uuid())];
        v_time := coalesce(p_deliver_ats[1], v_now + make_interval(secs => p_delays_s[1]));
        due_ats := array[case when v_time > v_now then v_time end];
        v_dedup_keys := array[coalesce(p_dedup_keys[1],
                                       case when p_topic.dedup_window_s is not null then p_message_ids[1]::text end)];
        if v_dedup_keys[1] is not null then
            v_reserved := coordinator.reserve_dedup_keys(
                p_topic.topic_id, v_dedup_keys, message_ids, due_ats,
                make_interval(secs => coalesce(p_topic.dedup_window_s, 86400)), v_now);
        end if;
        duplicates := array[v_dedup_keys[1] is not null and cardinality(v_reserved) = 0];
    else
        message_ids := array(select coalesce(u.id, gen_random_uuid()) from unnest(p_message_ids, v_filler) as u(id, filler));
        due_ats := array(select case when w.at > v_now then w.at end
                         from unnest(p_delays_s, p_deliver_ats, v_filler) with ordinality as u(delay_s, at, filler, n)
                         cross join lateral (select coalesce(u.at, v_now + make_interval(secs => u.delay_s)) as at) w
                         order by u.n);
        -- Only ids that the caller gave can come twice.
        v_dedup_keys := array(select coalesce(u.key, case when p_topic.dedup_window_s is not null then u.id::text end)
                              from unnest(p_dedup_keys, p_message_ids, v_filler) as u(key, id, filler));
        with firsts as (
            select distinct on (u.key) u.key, u.id, u.due_at
            from unnest(v_dedup_keys, message_ids, due_ats) with ordinality as u(key, id, due_at, n)
            where u.key is not null order by u.key, u.n)
        select coordinator.reserve_dedup_keys(
                   p_topic.topic_id, array_agg(f.key), array_agg(f.id), array_agg(f.due_at),
                   make_interval(secs => coalesce(p_topic.dedup_window_s, 86400)), v_now)
        into v_reserved from firsts f having count(*) > 0;
        -- Repeated: a key that somebody else has, or that stands earlier in this batch.
        duplicates := array(
            select u.key is not null and (r.key is null or u.n > min(u.n) over (partition by u.key))
            from unnest(v_dedup_keys) with ordinality as u(key, n)
            left join unnest(v_reserved) as r(key) on r.key = u.key
            order by u.n);
    end if;
    if p_on_duplicate = 'raise' and true = any (duplicates) then
        select u.key, u.n, d.* into v_bad
        from unnest(v_dedup_keys, duplicates) with ordinality as u(key, duplicate, n)
        left join coordinator.dedup_places(p_topic.topic_id, v_dedup_keys) d on d.dedup_key = u.key
        where u.duplicate order by u.n limit 1;
        raise exception using errcode = 'KG010',
            message = format('message %s: dedup key %L of topic %L was used before', v_bad.n - 1, v_bad.key, p_topic.name),
            detail = json_build_object('message_id', v_bad.message_id, 'partition', v_bad."partition",
                                       'offset', v_bad."offset", 'due_at', v_bad.due_at)::text;
    end if;

    if not true = any (duplicates) and array_remove(due_ats, null) = '{}' then
        v_sent := coordinator.publish_many(p_topic.name, p_payloads, p_keys, p_headers, message_ids, p_content_types,
                                           p_partitions, p_wake, p_on_duplicate => 'checked');
        partitions := v_sent.partitions;
        offsets := v_sent.offsets;
        perform coordinator.place_dedup_keys(p_topic.topic_id, v_dedup_keys, message_ids, partitions, offsets);
        duplicates := null;
        due_ats := null;
        return;
    end if;
    if array_remove(due_ats, null) <> '{}' then
        perform coordinator.schedule_messages(p_topic, p_payloads, p_keys, p_headers, message_ids, p_content_types, p_partitions,
                                              v_dedup_keys, due_ats, duplicates);
    end if;
    v_now_places := array(select u.n from unnest(duplicates, due_ats) with ordinality as u(duplicate, due_at, n)
                          where not u.duplicate and u.due_at is null order by u.n);
    select s.* into v_sent
    from (select array_agg(u.payload order by u.n) as payloads, array_agg(u.key order by u.n) as keys,
                 array_agg(u.headers order by u.n) as headers, array_agg(u.id order by u.n) as ids,
                 array_agg(u.content_type order by u.n) as content_types, array_agg(u.partition order by u.n) as partitions,
                 array_agg(u.dedup_key order by u.n) as dedup_keys
          from unnest(p_payloads, p_keys, p_headers, message_ids, p_content_types, p_partitions, v_dedup_keys, duplicates, due_ats)
               with ordinality as u(payload, key, headers, id, content_type, partition, dedup_key, duplicate, due_at, n)
          where not u.duplicate and u.due_at is null) a
    cross join lateral coordinator.publish_many(p_topic.name, a.payloads, a.keys, a.headers, a.ids, a.content_types,
                                                a.partitions, p_wake, p_on_duplicate => 'checked') p
    cross join lateral (select p.partitions, p.offsets,
                               coordinator.place_dedup_keys(p_topic.topic_id, a.dedup_keys, a.ids, p.partitions, p.offsets)) s;
    select array_agg(case when u.duplicate then d."partition" else s.partition end order by u.n),
           array_agg(case when u.duplicate then d."offset" else s."offset" end order by u.n),
           array_agg(case when u.duplicate then d.message_id else u.id end order by u.n),
           array_agg(case when u.duplicate then d.due_at else u.due_at end order by u.n)
    into partitions, offsets, message_ids, due_ats
    from unnest(message_ids, v_dedup_keys, duplicates, due_ats) with ordinality as u(id, key, duplicate, due_at, n)
    left join unnest(v_now_places, v_sent.partitions, v_sent.offsets) as s(n, partition, "offset") on s.n = u.n
    left join coordinator.dedup_places(
        p_topic.topic_id, array(select distinct w.key from unnest(v_dedup_keys, duplicates) as w(key, duplicate) where w.duplicate)
    ) d on d.dedup_key = u.key;
    if array_remove(due_ats, null) = '{}' then
        due_ats := null;
    end if;
end
$$;
