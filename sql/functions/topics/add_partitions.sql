create or replace function coordinator.add_partitions(p_topic text, p_partitions int, p_reason text default null) returns int
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- Raises the count of a topic's partitions to p_partitions. New messages of a key may go to another partition than its old ones
-- from now on. Every group reads the new partitions from their first offset (R11), as paused as all that it reads of the topic.
-- Returns: how many were added. Raises: KG003 no such topic; KG005 over 1024; KG004 it has more already; KG007.
-- Locks: advisory topics and rotation; the topics row NO KEY UPDATE; groups rows NO KEY UPDATE.
-- Race: a rotation writes down the bounds of all sequences, so one must not happen between. A group that begins to read the
-- topic holds its row FOR SHARE: it is either waited for, and found, or sees the new count.
-- A publisher that has read the old count goes on by it, until its transaction's snapshot ends: partitions do not go away.
declare
    v_topic coordinator.topics;
    v_sequences text[] := '{}';
    v_groups int[];
begin
    perform coordinator.require_read_committed('add_partitions');
    if p_partitions is null or p_partitions not between 1 and 1024 then
        raise exception using errcode = 'KG005', message = format('a topic has 1 to 1024 partitions, found %s', p_partitions);
    end if;
    perform pg_advisory_xact_lock(hashtextextended('coordinator.topics', 0));
    select t.* into v_topic from coordinator.topics t where t.name = p_topic;
    if not found then
        raise exception using errcode = 'KG003', message = format('there is no topic %L', p_topic),
            hint = coordinator.topic_hint(p_topic);
    end if;
    perform pg_advisory_xact_lock(hashtextextended('coordinator.rotation/' || v_topic.topic_id, 0));
    select t.* into v_topic from coordinator.topics t where t.topic_id = v_topic.topic_id for no key update;
    if v_topic.partitions > p_partitions then
        raise exception using errcode = 'KG004', message = format(
            'topic %L has %s partitions, which cannot become fewer; wanted %s', p_topic, v_topic.partitions, p_partitions);
    end if;
    if v_topic.partitions = p_partitions then
        return 0;
    end if;
    for v_partition in v_topic.partitions .. p_partitions - 1 loop
        execute format('create sequence %s_p%s as bigint minvalue 0 cache 1', v_topic.messages, v_partition);
        v_sequences := v_sequences || format('%s_p%s', v_topic.messages, v_partition);
    end loop;
    update coordinator.topics t
    set partitions = p_partitions, offset_sequences = t.offset_sequences || v_sequences::regclass[]
    where t.topic_id = v_topic.topic_id;
    v_groups := array(select g.group_id from coordinator.groups g
                      where exists (select from coordinator.group_topics s
                                    where s.group_id = g.group_id and s.topic_id = v_topic.topic_id)
                      order by g.group_id for no key update);
    insert into coordinator.claims (group_id, topic_id, partition, start_offset)
    select g.id, v_topic.topic_id, p.n, 0 from unnest(v_groups) as g(id), generate_series(v_topic.partitions, p_partitions - 1) as p(n);
    insert into coordinator.progress (group_id, topic_id, partition, seq, epoch, committed, hwm, done, oldest_seq, at)
    select g.id, v_topic.topic_id, p.n, 0, 0, 0, 0, '{}', 0, coordinator.now_()
    from unnest(v_groups) as g(id), generate_series(v_topic.partitions, p_partitions - 1) as p(n);
    insert into coordinator.pauses (group_id, topic_id, partition, kind, paused_by, reason, paused_at)
    select w.group_id, v_topic.topic_id, p.n, 'operator', coordinator.actor(), 'as all other partitions of the topic', coordinator.now_()
    from (select u.group_id from coordinator.pauses u
          where u.topic_id = v_topic.topic_id and u.kind = 'operator' and u.group_id = any (v_groups)
          group by u.group_id having count(*) = v_topic.partitions) w,
         generate_series(v_topic.partitions, p_partitions - 1) as p(n);
    update coordinator.groups g set version = g.version + 1 where g.group_id = any (v_groups);
    perform coordinator.record('add partitions', null, null, p_topic, v_topic.topic_id, p_reason => p_reason,
                               p_detail => jsonb_build_object('from', v_topic.partitions, 'to', p_partitions));
    perform pg_notify('coordinator.groups', '');
    return p_partitions - v_topic.partitions;
end
$$;
