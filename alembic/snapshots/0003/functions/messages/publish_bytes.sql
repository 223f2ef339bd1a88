create or replace function coordinator.publish_bytes(
    p_topic text,
    p_payload bytea,
    p_key text default null,
    p_headers jsonb default null,
    p_message_id uuid default null,
    p_partition int default null,
    p_content_type text default 'application/octet-stream',
    p_wake boolean default true,
    p_dedup_key text default null,
    p_on_duplicate text default 'return',
    p_delay_s double precision default null,
    p_deliver_at timestamptz default null,
    out topic text,
    out "partition" int,
    out "offset" bigint,
    out message_id uuid,
    out duplicate boolean,
    out due_at timestamptz
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- As publish, for any bytes: select * from coordinator.publish_bytes('frames', '\x00ff').
declare
    v_sent record;
begin
    v_sent := coordinator.publish_many(p_topic, array[p_payload], array[p_key], array[p_headers::text],
                                       array[p_message_id], array[p_content_type], array[p_partition], p_wake,
        case when p_dedup_key is not null then array[p_dedup_key] end, p_on_duplicate,
        case when p_delay_s is not null then array[p_delay_s] end,
        case when p_deliver_at is not null then array[p_deliver_at] end);
    topic := p_topic;
    "partition" := v_sent.partitions[1];
    "offset" := v_sent.offsets[1];
    message_id := v_sent.message_ids[1];
    duplicate := coalesce(v_sent.duplicates[1], false);
    due_at := v_sent.due_ats[1];
end
$$;
