create or replace function coordinator.set_topic_rights(p_topic text, p_publish text[], p_subscribe text[]) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- Which roles, and members of them, may publish to a topic and read it; null: whoever may call the functions, {}: only the owner.
-- Names and not oids: a dump is restored where a role is missing. A scheduled message is moved by who may publish to its topic.
-- Raises: KG003 no such topic, or no such role.
declare
    v_missing text;
begin
    select u.r into v_missing from unnest(p_publish || p_subscribe) as u(r)
    where not exists (select from pg_roles r where r.rolname = u.r) limit 1;
    if found then
        raise exception using errcode = 'KG003', message = format('there is no role %L', v_missing);
    end if;
    update coordinator.topics t set publish_roles = p_publish, subscribe_roles = p_subscribe where t.name = p_topic;
    if not found then
        raise exception using errcode = 'KG003', message = format('there is no topic %L', p_topic),
            hint = coordinator.topic_hint(p_topic);
    end if;
    perform coordinator.record('set topic rights', null, null, p_topic, null,
                               p_detail => jsonb_build_object('publish', p_publish, 'subscribe', p_subscribe));
end
$$;
