create or replace function coordinator.publish_bytes(
    p_topic text,
    p_payload bytea,
    p_key text default null,
    p_headers jsonb default null,
    p_message_id uuid default null,
    p_partition int default null,
    p_content_type text default 'application/octet-stream',
    p_wake boolean default true,
    out topic text,
    out "partition" int,
    out "offset" bigint,
    out message_id uuid
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- As publish, for any bytes: select * from coordinator.publish_bytes('frames', '\x00ff').
declare
    v_sent record;
begin
    v_sent := coordinator.publish_many(p_topic, array[p_payload], array[p_key], array[p_headers::text],
                                       array[p_message_id], array[p_content_type], array[p_partition], p_wake);
    topic := p_topic;
    "partition" := v_sent.partitions[1];
    "offset" := v_sent.offsets[1];
    message_id := v_sent.message_ids[1];
end
$$;
