create or replace function coordinator.delete_topic(
    p_topic text,
    p_force boolean default false,
    p_reason text default null,
    out groups text[],
    out members int,
    out unsettled bigint,
    out scheduled bigint
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s'
as $$
-- Deletes a topic for good: its messages, what waits for its time, its dedup keys, and what groups have of it, dead letters too.
-- Returns: which groups read it, how many of their members live, how many messages they had not settled (an upper bound), and
-- how many waited for their time.
-- Raises: KG003 no such topic; KG004 members are live, messages unsettled or scheduled, or transactions that publish open, and
-- p_force is not given; KG004 a claim's row, or the topic's by an open transaction that has scheduled a message, is held for
-- longer than five seconds; KG007.
-- Locks: advisory topics and rotation; the topics row NO KEY UPDATE, so that no group begins to read it; groups rows; claims;
-- dedup rows SKIP LOCKED. Not the table: a publisher holds the lock of a sequence while it waits for the table, or the other way
-- round, so whoever takes both deadlocks with one. What nobody sees any more is dropped by drop_remains, when it is free.
declare
    v_topic coordinator.topics;
    v_claim record;
    v_publishers int;
begin
    perform coordinator.require_read_committed('delete_topic');
    perform pg_advisory_xact_lock(hashtextextended('coordinator.topics', 0));
    select t.* into v_topic from coordinator.topics t where t.name = p_topic;
    if not found then
        raise exception using errcode = 'KG003', message = format('there is no topic %L', p_topic),
            hint = coordinator.topic_hint(p_topic);
    end if;
    perform pg_advisory_xact_lock(hashtextextended('coordinator.rotation/' || v_topic.topic_id, 0));
    select t.* into v_topic from coordinator.topics t where t.topic_id = v_topic.topic_id for no key update;
    perform 1 from coordinator.groups g
    where exists (select from coordinator.group_topics s where s.group_id = g.group_id and s.topic_id = v_topic.topic_id)
    order by g.group_id
    for no key update;
    select coalesce(array_agg(g.name order by g.name), '{}'),
           coalesce(sum(coordinator.live_members(g.group_id, v_topic.topic_id)), 0)
    into groups, members
    from coordinator.groups g
    join coordinator.group_topics s on s.group_id = g.group_id and s.topic_id = v_topic.topic_id;
    select coalesce(sum(o.lag), 0) into unsettled from coordinator.offsets o where o.topic = p_topic;
    select count(*) into scheduled from coordinator.scheduled s where s.topic_id = v_topic.topic_id;
    -- Nothing of these is counted above, and their COMMIT would succeed.
    v_publishers := cardinality(coordinator.open_publishers(v_topic));
    if not p_force and (members > 0 or unsettled > 0 or scheduled > 0 or v_publishers > 0) then
        raise exception using errcode = 'KG004', message = format(
            'topic %L is in use: groups: %s; live members: %s; messages to settle: %s; messages that wait for their time: %s; '
            'open transactions that publish: %s',
            p_topic, coalesce(nullif(array_to_string(groups, ', '), ''), 'none'), members, unsettled, scheduled, v_publishers),
            hint = 'Force it, and all of that is lost.';
    end if;
    for v_claim in
        select c.group_id, c.partition, g.name from coordinator.claims c
        join coordinator.groups g on g.group_id = c.group_id
        where c.topic_id = v_topic.topic_id
        order by c.group_id, c.partition
    loop
        perform coordinator.lock_claim(v_claim.group_id, v_claim.name, v_topic.topic_id, p_topic, v_claim.partition);
    end loop;
    delete from coordinator.acks a where a.topic_id = v_topic.topic_id;
    delete from coordinator.retries r where r.topic_id = v_topic.topic_id;
    delete from coordinator.crashes x where x.topic_id = v_topic.topic_id;
    delete from coordinator.dead_letters d where d.topic_id = v_topic.topic_id;
    delete from coordinator.skips s where s.topic_id = v_topic.topic_id;
    delete from coordinator.past_failures f where f.topic_id = v_topic.topic_id;
    delete from coordinator.progress p where p.topic_id = v_topic.topic_id;
    delete from coordinator.targets w where w.topic_id = v_topic.topic_id;
    update coordinator.groups g set version = g.version + 1 where g.name = any (groups);
    update coordinator.members m set topic_ids = array_remove(m.topic_ids, v_topic.topic_id)
    where v_topic.topic_id = any (m.topic_ids);
    delete from coordinator.group_topics s where s.topic_id = v_topic.topic_id;
    delete from coordinator.dedup d
    where d.ctid = any (array(select e.ctid from coordinator.dedup e where e.topic_id = v_topic.topic_id for update skip locked));
    delete from coordinator.topics t where t.topic_id = v_topic.topic_id;
    perform coordinator.record('delete topic', null, null, p_topic, v_topic.topic_id, p_reason => p_reason,
        p_detail => jsonb_build_object('groups', groups, 'members', members, 'unsettled', unsettled, 'scheduled', scheduled));
    perform pg_notify('coordinator.groups', '');
exception when lock_not_available then
    raise exception using errcode = 'KG004', message = format(
        'topic %L is held by an open transaction that has scheduled a message, or by its maintenance', p_topic),
        hint = 'Try again when it has ended; pg_stat_activity shows who has been in a transaction for long.';
end
$$;
