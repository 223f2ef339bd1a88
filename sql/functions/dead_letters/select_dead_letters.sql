create or replace function coordinator.select_dead_letters(
    p_group text,
    p_topic text default null,
    p_partition int default null,
    p_offset bigint default null,
    p_reason text default null,
    p_error text default null,
    p_key text default null,
    p_since timestamptz default null,
    p_until timestamptz default null,
    p_after_died_at timestamptz default null,
    p_after_topic text default null,
    p_after_partition int default null,
    p_after_offset bigint default null,
    p_limit int default 1000,
    p_full boolean default true,
    p_max_bytes bigint default null
) returns table (
    topic text, partition int, "offset" bigint, key text, message_id uuid, published_at timestamptz, content_type text,
    headers jsonb, payload bytea, payload_bytes int, reason text, error text, attempts int, crashes int, replays int,
    errors jsonb, died_at timestamptz
)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
-- With a generic plan no filter that may be null could use the index.
set plan_cache_mode = force_custom_plan
as $$
-- Dead letters of a group that match all given filters, those that died first first; p_error is a regular expression.
-- A page: what comes behind p_after_* (the last row of the page before), p_limit rows (null: all), and with p_max_bytes
-- no more rows once the payloads before have so many bytes, so at least one. Without p_full: no headers, payload, errors.
-- Raises: KG003 no such group or topic; KG005 p_error is no regular expression.
declare
    v_group int := coordinator.group_id_of(p_group);
    v_topic int;
begin
    if p_topic is not null then
        select t.topic_id into v_topic from coordinator.topics t where t.name = p_topic;
        if not found then
            raise exception using errcode = 'KG003', message = format('there is no topic %L', p_topic),
                hint = coordinator.topic_hint(p_topic);
        end if;
    end if;
    begin
        perform '' ~ p_error;
    exception when invalid_regular_expression then
        raise exception using errcode = 'KG005', message = format(
            'the pattern %L for errors is no regular expression: %s', p_error, sqlerrm);
    end;
    return query
    select w.name, w.partition, w."offset", w.key, w.message_id, w.published_at, w.content_type,
           case when p_full then w.headers end, case when p_full then w.payload end, octet_length(w.payload), w.reason, w.error,
           w.attempts, w.crashes, w.replays, case when p_full then w.errors end, w.died_at
    from (
        select f.*,
               sum(octet_length(f.payload)) over (
                   order by f.died_at, f.name, f.partition, f."offset"
                   rows between unbounded preceding and 1 preceding) as bytes_before
        from (
            select t.name, d.*
            from coordinator.dead_letters d
            join coordinator.topics t on t.topic_id = d.topic_id
            where d.group_id = v_group
              and (v_topic is null or d.topic_id = v_topic)
              and (p_partition is null or d.partition = p_partition)
              and (p_offset is null or d."offset" = p_offset)
              and (p_reason is null or d.reason = p_reason)
              and (p_error is null or d.error ~ p_error)
              and (p_key is null or d.key = p_key)
              and (p_since is null or d.died_at >= p_since)
              and (p_until is null or d.died_at < p_until)
              -- The first of the two is for the index.
              and (p_after_died_at is null or d.died_at >= p_after_died_at)
              and (p_after_died_at is null or (d.died_at, t.name, d.partition, d."offset")
                   > (p_after_died_at, p_after_topic, p_after_partition, p_after_offset))
            order by d.died_at, t.name, d.partition, d."offset"
            limit p_limit
        ) f
    ) w
    where p_max_bytes is null or coalesce(w.bytes_before, 0) < p_max_bytes
    order by w.died_at, w.name, w.partition, w."offset";
end
$$;
