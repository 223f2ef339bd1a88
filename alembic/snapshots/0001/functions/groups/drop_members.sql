create or replace function coordinator.drop_members(p_coordinators uuid[]) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
-- Takes coordinators out of all their groups and tells the groups that their membership changed.
declare
    v_groups int[];
begin
    v_groups := array(select g.group_id from coordinator.groups g
                      where exists (select from coordinator.members m
                                    where m.group_id = g.group_id and m.coordinator = any (p_coordinators))
                      order by g.group_id
                      for no key update);
    delete from coordinator.members m where m.coordinator = any (p_coordinators);
    update coordinator.groups g set version = g.version + 1 where g.group_id = any (v_groups);
    if v_groups <> '{}' then
        perform pg_notify('coordinator.groups', '');
    end if;
end
$$;
