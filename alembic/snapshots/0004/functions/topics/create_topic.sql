create or replace function coordinator.create_topic(
    p_topic text,
    p_partitions int,
    p_max_message_bytes int default 1048576,
    p_wake boolean default true,
    p_dedup_window_s double precision default null,
    p_max_backlog bigint default null,
    p_retention_s double precision default 604800,
    p_retention_bytes bigint default null,
    p_unconsumed text default 'keep',
    p_segment_max_age_s double precision default null,
    p_segment_max_bytes bigint default 1073741824,
    out topic_id int,
    out created boolean
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- Creates a topic with its table, its first segment and one sequence per partition, or finds it as wanted.
-- Raises: KG005 a bad name or number; KG004 the topic exists with another count of partitions.
-- Locks: one advisory lock for all creations of topics in this schema.
declare
    v_topic coordinator.topics;
    v_messages text;
    v_sequences text[] := '{}';
begin
    if p_topic is null or p_topic !~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$' then
        raise exception using errcode = 'KG005', message = format('bad topic name %L', p_topic),
            hint = 'Wanted: 1 to 200 letters, digits, dots, dashes or underscores, a letter or digit first.';
    end if;
    if p_partitions is null or p_partitions not between 1 and 1024 then
        raise exception using errcode = 'KG005', message = format('a topic has 1 to 1024 partitions, found %s', p_partitions);
    end if;
    if p_max_message_bytes is null or p_max_message_bytes not between 1 and 268435456 then
        raise exception using errcode = 'KG005', message = format(
            'max_message_bytes is between 1 and 268435456, found %s', p_max_message_bytes);
    end if;
    -- Not between is true of NaN, too.
    if p_dedup_window_s not between 1 and 31622400 then
        raise exception using errcode = 'KG005', message = format(
            'dedup_window_s is between 1 and 31622400, or null, found %s', p_dedup_window_s);
    end if;
    if p_max_backlog < 1 then
        raise exception using errcode = 'KG005', message = format('max_backlog is 1 or more, or null, found %s', p_max_backlog);
    end if;
    perform coordinator.check_retention(p_retention_s, p_retention_bytes, p_unconsumed, p_segment_max_age_s, p_segment_max_bytes);
    perform pg_advisory_xact_lock(hashtextextended('coordinator.topics', 0));
    select t.* into v_topic from coordinator.topics t where t.name = p_topic;
    if found then
        if v_topic.partitions <> p_partitions then
            raise exception using errcode = 'KG004', message = format(
                'topic %L exists with %s partitions, wanted %s', p_topic, v_topic.partitions, p_partitions);
        end if;
        topic_id := v_topic.topic_id;
        created := false;
        return;
    end if;
    topic_id := nextval('coordinator.topic_ids');
    created := true;
    v_messages := format('coordinator.topic_%s', topic_id);
    execute format($sql$
        create table %s (
            segment int not null,
            "partition" int not null,
            "offset" bigint not null,
            published_at timestamptz not null,
            message_id uuid not null,
            key text,
            content_type text,
            headers jsonb,
            payload bytea not null
        ) partition by list (segment)$sql$, v_messages);
    execute format('create sequence %s_segment as int', v_messages);
    for v_partition in 0 .. p_partitions - 1 loop
        execute format('create sequence %s_p%s as bigint minvalue 0 cache 1', v_messages, v_partition);
        v_sequences := v_sequences || format('%s_p%s', v_messages, v_partition);
    end loop;
    insert into coordinator.topics (topic_id, name, partitions, max_message_bytes, wake, messages, segment_sequence,
                                    offset_sequences, created_at, dedup_window_s, max_backlog, retention_s,
                                    retention_bytes, unconsumed, segment_max_age_s, segment_max_bytes)
    values (topic_id, p_topic, p_partitions, p_max_message_bytes, p_wake, v_messages::regclass,
            (v_messages || '_segment')::regclass, v_sequences::regclass[], coordinator.now_(), p_dedup_window_s,
            p_max_backlog, p_retention_s, p_retention_bytes, p_unconsumed, p_segment_max_age_s, p_segment_max_bytes);
    perform coordinator.add_segment(p_topic);
    perform coordinator.open_segment(p_topic, 1);
end
$$;
