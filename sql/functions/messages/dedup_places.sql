create or replace function coordinator.dedup_places(p_topic_id int, p_keys text[]) returns table (
    dedup_key text, message_id uuid, "partition" int, "offset" bigint, due_at timestamptz
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
-- What was published under these keys; due_at only while the message waits for it.
begin
    -- Offset 0: one look into the index for each key, whatever the table's size was when the plan was made.
    return query
    select u.key, f.message_id, f.partition, f."offset", case when f."offset" is null then f.due_at end
    from unnest(p_keys) as u(key)
    cross join lateral (
        select d.message_id, d.partition, d."offset", d.due_at from coordinator.dedup d
        where d.topic_id = p_topic_id and d.dedup_key = u.key offset 0) f;
end
$$;
