create or replace function coordinator.group_id_of(p_group text) returns int
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
-- The number of a group. Raises: KG003 no such group.
declare
    v_group int;
begin
    select g.group_id into v_group from coordinator.groups g where g.name = p_group;
    if not found then
        raise exception using errcode = 'KG003', message = format('there is no group %L', p_group),
            hint = coordinator.group_hint(p_group);
    end if;
    return v_group;
end
$$;
