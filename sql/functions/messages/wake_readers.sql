create or replace function coordinator.wake_readers(p_topic coordinator.topics) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set quote_all_identifiers = off
as $$
-- At most one NOTIFY, without payload, per transaction and topic, and only if no other transaction that will
-- notify holds the lock of these 10 ms: NOTIFY takes a cluster-wide lock at commit.
-- Who skips has its offsets before the notifier commits, so the reader that the notifier wakes finds them handed out
-- and polls for them. If the notifier rolls back or stays open, the readers' polling finds them.
declare
    v_setting text := 'pgcoord.woke_' || p_topic.messages::oid;
begin
    if coalesce(current_setting(v_setting, true), '') <> '' then
        return;
    end if;
    if pg_try_advisory_xact_lock(hashtextextended(
        'coordinator.wake/' || p_topic.topic_id || '/' || floor(extract(epoch from clock_timestamp()) * 100), 0)) then
        perform pg_notify(p_topic.messages::text, '');
        perform set_config(v_setting, '1', true);
    end if;
end
$$;
