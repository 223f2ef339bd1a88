create or replace function coordinator.return_letter(p_row coordinator.retries, p_reason text, p_now timestamptz) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
-- Makes a replayed dead letter, which was not settled, a dead letter again: its payload may be nowhere else (R16). The caller has
-- the claim's row, and takes the retries row away.
begin
    insert into coordinator.dead_letters as d (group_id, topic_id, partition, "offset", key, message_id, published_at,
        content_type, headers, payload, reason, error, attempts, crashes, replays, errors, died_at)
    values (p_row.group_id, p_row.topic_id, p_row.partition, p_row."offset", p_row.key, p_row.message_id, p_row.published_at,
            p_row.content_type, p_row.headers, p_row.payload, p_reason, p_row.errors -> -1 ->> 'error',
            p_row.fails + p_row.crashes, p_row.crashes, p_row.replays, p_row.errors, p_now)
    on conflict on constraint dead_letters_pkey do update
        set reason = excluded.reason, error = excluded.error, attempts = excluded.attempts, crashes = excluded.crashes,
            replays = greatest(d.replays, excluded.replays), died_at = excluded.died_at,
            errors = coordinator.join_errors(d.errors, excluded.errors);
end
$$;
