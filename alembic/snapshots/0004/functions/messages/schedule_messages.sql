create or replace function coordinator.schedule_messages(
    p_topic coordinator.topics,
    p_payloads bytea[],
    p_keys text[],
    p_headers text[],
    p_message_ids uuid[],
    p_content_types text[],
    p_partitions int[],
    p_dedup_keys text[],
    p_due_ats timestamptz[],
    p_duplicates boolean[]
) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
-- Keeps those of a batch that have a time and are no duplicates; publish_many has checked them, so that what it would refuse is
-- refused now, when there is somebody to tell. The partition of a key is found when the message is moved.
-- Raises: 22P02 headers that are no JSON; KG013 the topic was deleted meanwhile.
begin
    insert into coordinator.scheduled (topic_id, due_at, next_at, partition, message_id, key, content_type, headers, payload,
                                       dedup_key, created_at)
    select p_topic.topic_id, u.due_at, u.due_at, u.partition, u.id, u.key, u.content_type, u.headers::jsonb, u.payload,
           u.dedup_key, coordinator.now_()
    from unnest(p_payloads, p_keys, p_headers, p_message_ids, p_content_types, p_partitions, p_dedup_keys, p_due_ats, p_duplicates)
         with ordinality as u(payload, key, headers, id, content_type, partition, dedup_key, due_at, duplicate, n)
    where u.due_at is not null and not u.duplicate
    order by u.n;
exception when foreign_key_violation then
    perform coordinator.raise_gone(p_topic.topic_id, p_topic.messages);
end
$$;
