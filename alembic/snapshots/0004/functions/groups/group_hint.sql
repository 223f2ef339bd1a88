create or replace function coordinator.group_hint(p_group text) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
-- What to say to who names a group that there is not: the one that was meant, and where to look.
declare
    v_meant text := coordinator.nearest(p_group, array(select g.name from coordinator.groups g));
begin
    return coalesce('Did you mean ' || v_meant || '? ', '')
        || 'A group is made when its first consumer starts; those that exist: coordinator groups list';
end
$$;
