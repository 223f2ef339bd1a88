create or replace function coordinator.claims_named(
    p_group_id int,
    p_group text,
    p_topic text,
    p_partitions int[]
) returns table (topic text, topic_id int, "partition" int)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
-- The claims of a group that a person means: of all its topics, or of one, or of some partitions of one.
-- Raises: KG003 the group reads no such topic or partition; KG005 partitions without a topic.
declare
    v_missing int;
begin
    if p_topic is null and p_partitions is not null then
        raise exception using errcode = 'KG005', message = 'partitions are those of a topic: name it';
    end if;
    if p_topic is not null and not exists (
        select from coordinator.group_topics s join coordinator.topics t on t.topic_id = s.topic_id
        where s.group_id = p_group_id and t.name = p_topic) then
        raise exception using errcode = 'KG003', message = format('group %L reads no topic %L', p_group, p_topic);
    end if;
    select u.n into v_missing from unnest(p_partitions) as u(n)
    where not exists (select from coordinator.claims c join coordinator.topics t on t.topic_id = c.topic_id
                      where c.group_id = p_group_id and t.name = p_topic and c.partition = u.n) limit 1;
    if found then
        raise exception using errcode = 'KG003', message = format(
            'group %L has no partition %s of topic %L', p_group, v_missing, p_topic);
    end if;
    return query
    select t.name, c.topic_id, c.partition from coordinator.claims c
    join coordinator.topics t on t.topic_id = c.topic_id
    where c.group_id = p_group_id and (p_topic is null or t.name = p_topic)
      and (p_partitions is null or c.partition = any (p_partitions));
end
$$;
