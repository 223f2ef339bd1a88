create or replace function coordinator.group_expired(p_group int) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
-- What the group's expiry policy wants done now, release or delete; null while it has members, or none for too short a time.
begin
    return (
        select g.on_expiry from coordinator.groups g
        where g.group_id = p_group and g.unused_since <= coordinator.now_() - make_interval(secs => g.expire_s)
          and not exists (select from coordinator.members m where m.group_id = g.group_id));
end
$$;
