create or replace function coordinator.trim_dead_letters(p_limit int default 1000) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- Keeps every group within its max_dead_letters: drops what died first, and counts it in groups.dead_letters_dropped.
-- Returns: how many were dropped; p_limit at most per group, so whoever gets p_limit calls again.
-- Locks: the lock of this task, tried only; rows of the groups that are over, NO KEY UPDATE SKIP LOCKED, before their dead letters, SKIP LOCKED: two that trim
-- at once would else both count the surplus, and drop it twice over.
declare
    v_group record;
    v_over bigint;
    v_count bigint;
    v_total bigint := 0;
begin
    -- Tried only: who notes the end of the task would else wait for whoever trims just now.
    if not coordinator.begin_task('trim') then
        return 0;
    end if;
    for v_group in
        select g.group_id from coordinator.groups g
        where (select count(*) from coordinator.dead_letters d where d.group_id = g.group_id) > g.max_dead_letters
        order by g.group_id
    loop
        -- In statements of their own: the lock first, then a snapshot that sees what the former trimmer dropped.
        perform 1 from coordinator.groups g where g.group_id = v_group.group_id for no key update skip locked;
        continue when not found;
        select (select count(*) from coordinator.dead_letters d where d.group_id = g.group_id) - g.max_dead_letters into v_over
        from coordinator.groups g where g.group_id = v_group.group_id;
        continue when v_over <= 0;
        delete from coordinator.dead_letters d
        where d.ctid = any (array(
            select x.ctid from coordinator.dead_letters x where x.group_id = v_group.group_id
            order by x.died_at, x.topic_id, x.partition, x."offset" limit least(v_over, p_limit)
            for update skip locked));
        get diagnostics v_count = row_count;
        update coordinator.groups g set dead_letters_dropped = g.dead_letters_dropped + v_count where g.group_id = v_group.group_id;
        v_total := v_total + v_count;
    end loop;
    perform coordinator.end_task('trim');
    return v_total;
end
$$;
