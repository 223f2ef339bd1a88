create or replace function coordinator.check_subscribe(p_topic_ids int[]) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
-- Raises: KG008 where one of the topics names the roles that may read it, and the caller is none of them.
declare
    v_topic text;
begin
    select t.name into v_topic from coordinator.topics t
    where t.topic_id = any (p_topic_ids) and t.subscribe_roles is not null and not coordinator.may(t.subscribe_roles)
    limit 1;
    if found then
        raise exception using errcode = 'KG008', message = format('role %s may not read topic %L', coordinator.actor(), v_topic),
            hint = 'An operator can allow it: coordinator topics rights NAME --subscribe ROLE';
    end if;
end
$$;
