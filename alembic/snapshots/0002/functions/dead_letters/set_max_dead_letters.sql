create or replace function coordinator.set_max_dead_letters(p_group text, p_max int) returns int
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- Bounds the dead letters of a group; what is over is dropped by trim_dead_letters, the oldest first.
-- Returns: the bound before. Raises: KG003 no such group; KG005 no number from 0 on.
-- Locks: the group's row, waiting.
declare
    v_group int := coordinator.group_id_of(p_group);
    v_before int;
begin
    if p_max is null or p_max < 0 then
        raise exception using errcode = 'KG005', message = format(
            'max_dead_letters is 0 to 2147483647, found %s', coalesce(p_max::text, 'null'));
    end if;
    select g.max_dead_letters into v_before from coordinator.groups g where g.group_id = v_group for no key update;
    update coordinator.groups g set max_dead_letters = p_max where g.group_id = v_group;
    return v_before;
end
$$;
