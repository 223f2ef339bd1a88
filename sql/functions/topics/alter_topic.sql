create or replace function coordinator.alter_topic(p_topic text, p_settings jsonb, p_reason text default null) returns jsonb
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- Changes settings of a topic: max_message_bytes, wake, dedup_window_s, max_backlog, retention_s, retention_bytes, unconsumed,
-- segment_max_age_s, segment_max_bytes; all but wake, unconsumed and the first may be null. What is not in p_settings stays. Returns: the changed settings as they were.
-- Holds for what is published from now on: dedup keys keep the time they were given; clients may believe the old limit of bytes
-- for a minute.
-- Raises: KG003 no such topic; KG005 an unknown setting, or a value that no topic can have.
-- Locks: the topics row NO KEY UPDATE.
declare
    v_topic coordinator.topics;
    v_unknown text;
begin
    if coalesce(jsonb_typeof(p_settings), 'null') <> 'object' then
        raise exception using errcode = 'KG005', message = format('the settings of a topic are an object, found %L', p_settings);
    end if;
    select s.k into v_unknown from jsonb_object_keys(p_settings) as s(k)
    where s.k not in ('max_message_bytes', 'wake', 'dedup_window_s', 'max_backlog', 'retention_s', 'retention_bytes', 'unconsumed',
                      'segment_max_age_s', 'segment_max_bytes') limit 1;
    if found then
        raise exception using errcode = 'KG005', message = format(
            'a topic has no setting %L; there are: max_message_bytes, wake, dedup_window_s, max_backlog, retention_s, retention_bytes, '
            'unconsumed, segment_max_age_s, segment_max_bytes', v_unknown);
    end if;
    select t.* into v_topic from coordinator.topics t where t.name = p_topic for no key update;
    if not found then
        raise exception using errcode = 'KG003', message = format('there is no topic %L', p_topic),
            hint = coordinator.topic_hint(p_topic);
    end if;
    begin
        update coordinator.topics t
        set max_message_bytes = case when p_settings ? 'max_message_bytes' then (p_settings ->> 'max_message_bytes')::int
                                     else t.max_message_bytes end,
            wake = case when p_settings ? 'wake' then (p_settings ->> 'wake')::boolean else t.wake end,
            dedup_window_s = case when p_settings ? 'dedup_window_s' then (p_settings ->> 'dedup_window_s')::double precision
                                  else t.dedup_window_s end,
            max_backlog = case when p_settings ? 'max_backlog' then (p_settings ->> 'max_backlog')::bigint else t.max_backlog end,
            retention_s = case when p_settings ? 'retention_s' then (p_settings ->> 'retention_s')::double precision
                               else t.retention_s end,
            retention_bytes = case when p_settings ? 'retention_bytes' then (p_settings ->> 'retention_bytes')::bigint
                                   else t.retention_bytes end,
            unconsumed = case when p_settings ? 'unconsumed' then p_settings ->> 'unconsumed' else t.unconsumed end,
            segment_max_age_s = case when p_settings ? 'segment_max_age_s' then (p_settings ->> 'segment_max_age_s')::double precision
                                     else t.segment_max_age_s end,
            segment_max_bytes = case when p_settings ? 'segment_max_bytes' then (p_settings ->> 'segment_max_bytes')::bigint
                                     else t.segment_max_bytes end
        where t.topic_id = v_topic.topic_id;
    exception when check_violation or not_null_violation or invalid_text_representation or numeric_value_out_of_range then
        raise exception using errcode = 'KG005', message = format('no topic can have the settings %s', p_settings),
            hint = 'Wanted: max_message_bytes 1 to 268435456; wake true or false; dedup_window_s 1 to 31622400 or null; '
                   'max_backlog 1 or more, or null; retention_s and segment_max_age_s 1 to 3.2e9 or null; retention_bytes 1 or more, '
                   'segment_max_bytes 8192 or more, or null; unconsumed keep or drop.';
    end;
    perform coordinator.record('alter topic', null, null, p_topic, v_topic.topic_id, p_reason => p_reason, p_detail => p_settings);
    return (select jsonb_object_agg(s.k, to_jsonb(v_topic) -> s.k) from jsonb_object_keys(p_settings) as s(k));
end
$$;
