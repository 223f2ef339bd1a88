create or replace function coordinator.trim_dead_letters(p_limit int default 1000) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- Keeps every group within its max_dead_letters: drops the oldest, and counts them in groups.dead_letters_dropped.
-- Returns: how many were dropped; p_limit at most per group.
declare
    v_group record;
    v_over bigint;
    v_count bigint;
    v_total bigint := 0;
begin
    for v_group in select g.group_id, g.max_dead_letters from coordinator.groups g order by g.group_id loop
        select count(*) - v_group.max_dead_letters into v_over from coordinator.dead_letters d where d.group_id = v_group.group_id;
        continue when v_over <= 0;
        delete from coordinator.dead_letters d
        where d.ctid = any (array(
            select x.ctid from coordinator.dead_letters x where x.group_id = v_group.group_id
            order by x.died_at limit least(v_over, p_limit)
            for update skip locked));
        get diagnostics v_count = row_count;
        update coordinator.groups g set dead_letters_dropped = g.dead_letters_dropped + v_count where g.group_id = v_group.group_id;
        v_total := v_total + v_count;
    end loop;
    return v_total;
end
$$;
