create or replace function coordinator.show_messages(
    p_topic text,
    p_partition int default null,
    p_from bigint default 0,
    p_limit int default 100
) returns table (
    "partition" int, "offset" bigint, published_at timestamptz, key text, headers jsonb, content_type text, value jsonb,
    payload_bytes int, message_id uuid
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- Up to p_limit visible messages of one partition, or of each, from an offset on, for people: value is the payload where
-- it is JSON, else null. Moves nothing.
-- Raises: KG003 no such topic or partition; by peek, whose rights hold here, too.
declare
    v_partitions int;
begin
    select t.partitions into v_partitions from coordinator.topics t where t.name = p_topic;
    return query
    select r."partition", r."offset", r.published_at, r.key, r.headers::jsonb, coalesce(r.content_type, 'application/json'),
           case when coalesce(r.content_type, 'application/json') like '%json%' then coordinator.decode_json(r.payload) end,
           octet_length(r.payload), r.message_id
    from generate_series(coalesce(p_partition, 0), coalesce(p_partition, v_partitions - 1, 0)) as n(partition)
    cross join lateral coordinator.peek(p_topic, n.partition, p_from, p_limit) r;
end
$$;
