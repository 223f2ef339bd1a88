create or replace function coordinator.set_group_expiry(
    p_group text,
    p_expire_s double precision,
    p_on_expiry text default 'release',
    p_max_dead_letter_age_s double precision default null
) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- What becomes of a group that has had no members for p_expire_s (null: nothing): release, it holds back no segment any more and
-- skips what retention drops; or delete, with its dead letters. And how long its dead letters are kept (null: for ever).
-- Raises: KG003 no such group; KG005 a bad value. Locks: the groups row, waiting.
declare
    v_group int := coordinator.group_id_of(p_group);
begin
    update coordinator.groups g
    set expire_s = p_expire_s, on_expiry = p_on_expiry, max_dead_letter_age_s = p_max_dead_letter_age_s
    where g.group_id = v_group;
exception when check_violation or not_null_violation then
    raise exception using errcode = 'KG005', message = format(
        'expire_s and max_dead_letter_age_s are between 1 and 3.2e9, or null, on_expiry is release or delete; found %s, %s and %L',
        coalesce(p_expire_s::text, 'null'), coalesce(p_max_dead_letter_age_s::text, 'null'), p_on_expiry);
end
$$;
