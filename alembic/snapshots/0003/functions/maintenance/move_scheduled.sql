create or replace function coordinator.move_scheduled(p_topic coordinator.topics, p_ids bigint[]) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
-- Publishes these scheduled messages, in this order, and deletes their rows, which the caller has locked.
-- Raises: as publish_many.
declare
    v_rows record;
    v_sent record;
begin
    select array_agg(s.payload order by u.n) as payloads, array_agg(s.key order by u.n) as keys,
           array_agg(s.headers::text order by u.n) as headers, array_agg(s.message_id order by u.n) as ids,
           array_agg(s.content_type order by u.n) as content_types, array_agg(s.partition order by u.n) as partitions,
           array_agg(s.dedup_key order by u.n) as dedup_keys
    into v_rows
    from unnest(p_ids) with ordinality as u(id, n)
    cross join lateral (select w.* from coordinator.scheduled w where w.schedule_id = u.id offset 0) s;
    v_sent := coordinator.publish_many(p_topic.name, v_rows.payloads, v_rows.keys, v_rows.headers, v_rows.ids,
                                       v_rows.content_types, v_rows.partitions, p_on_duplicate => 'checked');
    if array_remove(v_rows.dedup_keys, null) <> '{}' then
        perform coordinator.place_dedup_keys(p_topic.topic_id, v_rows.dedup_keys, v_rows.ids, v_sent.partitions, v_sent.offsets);
    end if;
    delete from coordinator.scheduled s where s.schedule_id = any (p_ids);
end
$$;
