create or replace function coordinator.replay(
    p_group text,
    p_topic text,
    p_partition int,
    p_offsets bigint[],
    p_max_parked int default 10000
) returns table ("offset" bigint, outcome text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set quote_all_identifiers = off
as $$
-- Gives dead letters of one partition back to this group, and to no other; they start at attempt 1 and keep their history.
-- Returns: per offset replayed; gone (replayed or purged by somebody else); or full (max_parked waits in that partition).
-- Raises: KG003 no such group, topic or partition; KG007 at another isolation level.
-- Locks: the claim's row FOR KEY SHARE before the dead letters, which are skipped where somebody holds them (R17).
declare
    v_group int := coordinator.group_id_of(p_group);
    v_topic coordinator.topics;
    v_room bigint;
    v_any boolean := false;
    v_dead coordinator.dead_letters;
begin
    perform coordinator.require_read_committed('replay');
    select t.* into v_topic from coordinator.topics t where t.name = p_topic;
    if not found then
        raise exception using errcode = 'KG003', message = format('there is no topic %L', p_topic),
            hint = coordinator.topic_hint(p_topic);
    end if;
    perform 1 from coordinator.claims c
    where c.group_id = v_group and c.topic_id = v_topic.topic_id and c.partition = p_partition
    for key share;
    if not found then
        raise exception using errcode = 'KG003', message = format(
            'group %L has no partition %s of topic %L', p_group, p_partition, p_topic);
    end if;
    select p_max_parked - count(*) into v_room from coordinator.retries r
    where r.group_id = v_group and r.topic_id = v_topic.topic_id and r.partition = p_partition;
    foreach "offset" in array p_offsets loop
        if v_room <= 0 then
            outcome := 'full';
            return next;
            continue;
        end if;
        delete from coordinator.dead_letters d
        where d.ctid = (select x.ctid from coordinator.dead_letters x
                        where x.group_id = v_group and x.topic_id = v_topic.topic_id and x.partition = p_partition
                          and x."offset" = replay."offset"
                        for update skip locked)
        returning d.* into v_dead;
        if not found then
            outcome := 'gone';
            return next;
            continue;
        end if;
        insert into coordinator.retries (group_id, topic_id, partition, "offset", key, fails, crashes, next_at, replays, errors,
                                         created_at, published_at, message_id, content_type, headers, payload)
        values (v_group, v_topic.topic_id, p_partition, v_dead."offset", v_dead.key, 0, 0, coordinator.now_(), v_dead.replays + 1,
                v_dead.errors, coordinator.now_(), v_dead.published_at, v_dead.message_id, v_dead.content_type, v_dead.headers,
                v_dead.payload);
        v_room := v_room - 1;
        v_any := true;
        outcome := 'replayed';
        return next;
    end loop;
    if v_any then
        perform pg_notify(v_topic.messages::text, '');
    end if;
end
$$;
