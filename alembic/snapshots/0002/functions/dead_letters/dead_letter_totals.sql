create or replace function coordinator.dead_letter_totals(p_group text) returns table (
    dead_letters bigint, max_dead_letters int, dropped bigint, oldest timestamptz, newest timestamptz, as_of timestamptz
)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
-- How many dead letters a group has, how many it may have, how many trim_dead_letters has dropped for that, and the time.
-- Raises: KG003 no such group.
declare
    v_group int := coordinator.group_id_of(p_group);
begin
    return query
    select (select count(*) from coordinator.dead_letters d where d.group_id = v_group), g.max_dead_letters, g.dead_letters_dropped,
           (select min(d.died_at) from coordinator.dead_letters d where d.group_id = v_group),
           (select max(d.died_at) from coordinator.dead_letters d where d.group_id = v_group), coordinator.now_()
    from coordinator.groups g where g.group_id = v_group;
end
$$;
