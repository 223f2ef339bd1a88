create or replace function coordinator.select_dead_letters(
    p_group text,
    p_topic text default null,
    p_partition int default null,
    p_offset bigint default null,
    p_reason text default null,
    p_error text default null,
    p_key text default null,
    p_since timestamptz default null,
    p_until timestamptz default null,
    p_limit int default 1000
) returns setof coordinator.dead_letters
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
-- Dead letters of a group that match all given filters, oldest first; p_error is a regular expression.
-- Raises: KG003 no such group or topic.
declare
    v_group int := coordinator.group_id_of(p_group);
    v_topic int;
begin
    if p_topic is not null then
        select t.topic_id into v_topic from coordinator.topics t where t.name = p_topic;
        if not found then
            raise exception using errcode = 'KG003', message = format('there is no topic %L', p_topic);
        end if;
    end if;
    return query
    select d.* from coordinator.dead_letters d
    where d.group_id = v_group
      and (v_topic is null or d.topic_id = v_topic)
      and (p_partition is null or d.partition = p_partition)
      and (p_offset is null or d."offset" = p_offset)
      and (p_reason is null or d.reason = p_reason)
      and (p_error is null or d.error ~ p_error)
      and (p_key is null or d.key = p_key)
      and (p_since is null or d.died_at >= p_since)
      and (p_until is null or d.died_at < p_until)
    order by d.died_at, d.topic_id, d.partition, d."offset"
    limit p_limit;
end
$$;
