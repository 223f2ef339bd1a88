create or replace function coordinator.reserve_dedup_keys(
    p_topic_id int,
    p_keys text[],
    p_message_ids uuid[],
    p_due_ats timestamptz[],
    p_window interval,
    p_now timestamptz
) returns text[]
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
-- Enters keys, each given once, for messages whose places are not known yet; a key whose row has expired is taken over.
-- The window of a message for later begins when it is due.
-- Returns: the keys that are the caller's now; the others have a live row of somebody else.
-- Locks: waits for a transaction that has entered or renewed one of the keys and is open, the one place where a publisher
-- waits for another. Keys are taken in order, so two batches never wait for each other. A live row is read without a lock.
-- Race: two at once enter one key. The second waits in its INSERT. The first commits: the second enters nothing, and its next
-- statement, with a snapshot of its own, sees the first's row; at REPEATABLE READ it fails with 40001. The first rolls back:
-- the second's INSERT goes on. A row that is purged or renewed between two statements is looked at again.
-- Key by key: as fast as one statement for all, and no plan that was made for few keys or a small table can be wrong.
declare
    v_reserved text[] := '{}';
    v_row record;
begin
    for v_row in
        select u.key, u.id, u.due_at, coalesce(u.due_at, p_now) + p_window as expires_at
        from unnest(p_keys, p_message_ids, p_due_ats) as u(key, id, due_at)
        order by u.key collate "C"
    loop
        loop
            insert into coordinator.dedup (topic_id, dedup_key, message_id, due_at, expires_at)
            values (p_topic_id, v_row.key, v_row.id, v_row.due_at, v_row.expires_at)
            on conflict do nothing;
            if not found then
                perform 1 from coordinator.dedup d
                where d.topic_id = p_topic_id and d.dedup_key = v_row.key and d.expires_at > p_now;
                exit when found;
                update coordinator.dedup d
                set message_id = v_row.id, partition = null, "offset" = null, due_at = v_row.due_at, expires_at = v_row.expires_at
                where d.topic_id = p_topic_id and d.dedup_key = v_row.key and d.expires_at <= p_now;
                continue when not found;
            end if;
            v_reserved := array_append(v_reserved, v_row.key);
            exit;
        end loop;
    end loop;
    return v_reserved;
end
$$;
