create or replace function coordinator.probe_claim(p_group int, p_topic int, p_partition int, p_lock_ms int default 1000) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- Waits for a claim's row as claim would if it did not skip, and gives it back: whoever asks blockers_of about this session
-- meanwhile learns who holds it. Row locks are not in pg_locks; a wait for one is.
-- Returns: true when the row could be had.
-- Locks: the claim's row, for up to p_lock_ms of waiting, in a transaction of its own.
begin
    perform set_config('lock_timeout', p_lock_ms::text, true);
    begin
        perform 1 from coordinator.claims c
        where c.group_id = p_group and c.topic_id = p_topic and c.partition = p_partition
        for update;
        raise exception using errcode = 'KG000';
    exception
        when sqlstate 'KG000' then
            return true;
        when lock_not_available then
            return false;
    end;
end
$$;
