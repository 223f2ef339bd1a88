create or replace function coordinator.join_group(
    p_coordinator uuid,
    p_group text,
    p_topics text[],
    p_from text default 'earliest',
    p_from_time timestamptz default null,
    out group_id int,
    out topics jsonb
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set quote_all_identifiers = off
as $$
-- Makes a coordinator a member of a group that reads topics; the group, and its claims on a topic, are made if missing.
-- p_from (earliest, latest, time) says where a group starts that has not read the topic before; it moves nothing else.
-- p_coordinator may be null: then the group is made, and nobody joins.
-- Returns: topics as [{"topic_id", "name", "partitions", "channel"}].
-- Whoever was a member before and comes back calls rejoin_group, which makes nothing.
-- Raises: KG002, KG012 the coordinator is dead, or replaced; KG003 no such topic; KG005 bad name or p_from.
-- Locks: topics rows SHARE, the coordinators row KEY SHARE, the groups row NO KEY UPDATE.
-- Rule: latest starts at V + 1 and does not get what publishers open at this moment commit below it (R11).
declare
    v_missing text;
    v_topic coordinator.topics;
    v_paused boolean;
begin
    perform coordinator.require_read_committed('join_group');
    if p_group is null or p_group !~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$' then
        raise exception using errcode = 'KG005', message = format('bad group name %L', p_group),
            hint = 'Wanted: 1 to 200 letters, digits, dots, dashes or underscores, a letter or digit first.';
    end if;
    if p_from is null or p_topics is null or p_from not in ('earliest', 'latest', 'time') or (p_from = 'time') <> (p_from_time is not null) then
        raise exception using errcode = 'KG005', message = format(
            'a group reads topics from earliest, latest or time with a time, found %L with %L and topics %L', p_from, p_from_time, p_topics);
    end if;
    -- Before all else: partitions are added, topics deleted, and starts of logs moved under the locks of these rows.
    perform 1 from coordinator.topics t where t.name = any (p_topics) order by t.topic_id for share;
    select u.n into v_missing from unnest(p_topics) as u(n)
    where not exists (select from coordinator.topics t where t.name = u.n) limit 1;
    if found then
        raise exception using errcode = 'KG003', message = format('there is no topic %L', v_missing),
            hint = coordinator.topic_hint(v_missing);
    end if;
    perform coordinator.check_subscribe(array(select t.topic_id from coordinator.topics t where t.name = any (p_topics)));
    if p_coordinator is not null then
        perform 1 from coordinator.coordinators c where c.coordinator = p_coordinator and c.state in ('alive', 'draining') for key share;
        if not found then
            perform coordinator.raise_dead(p_coordinator);
        end if;
    end if;

    loop
        insert into coordinator.groups (name, created_at) values (p_group, coordinator.now_()) on conflict (name) do nothing;
        select g.group_id into group_id from coordinator.groups g where g.name = p_group for no key update;
        -- Not found: it was there, and is deleted at this moment.
        exit when found;
    end loop;
    -- Somebody has paused the group: then what it begins to read is paused like all that it reads.
    v_paused := (
        select count(*) > 0 and count(*) = count(u.group_id)
        from coordinator.claims c
        left join coordinator.pauses u on u.group_id = c.group_id and u.topic_id = c.topic_id and u.partition = c.partition
         and u.kind = 'operator'
        where c.group_id = join_group.group_id);

    for v_topic in select t.* from coordinator.topics t where t.name = any (p_topics) order by t.topic_id loop
        perform 1 from coordinator.group_topics s where s.group_id = join_group.group_id and s.topic_id = v_topic.topic_id;
        continue when found;
        insert into coordinator.group_topics (group_id, topic_id, started_from, created_at)
        values (join_group.group_id, v_topic.topic_id, p_from, coordinator.now_());
        insert into coordinator.claims (group_id, topic_id, partition, start_offset)
        select join_group.group_id, v_topic.topic_id, p.n,
               case p_from
                   when 'earliest' then coordinator.log_start(v_topic.topic_id, p.n)
                   when 'latest' then coordinator.high_offset(v_topic.topic_id, p.n) + 1
                   else coordinator.offset_at(v_topic.topic_id, p.n, p_from_time)
               end
        from generate_series(0, v_topic.partitions - 1) as p(n);
        insert into coordinator.progress (group_id, topic_id, partition, seq, epoch, committed, hwm, done, oldest_seq, at)
        select c.group_id, c.topic_id, c.partition, 0, 0, c.start_offset, c.start_offset, '{}', 0, coordinator.now_()
        from coordinator.claims c where c.group_id = join_group.group_id and c.topic_id = v_topic.topic_id;
        insert into coordinator.pauses (group_id, topic_id, partition, kind, paused_by, reason, paused_at)
        select c.group_id, c.topic_id, c.partition, 'operator', coordinator.actor(), 'as all else that the group reads', coordinator.now_()
        from coordinator.claims c where v_paused and c.group_id = join_group.group_id and c.topic_id = v_topic.topic_id;
    end loop;

    if p_coordinator is not null then
        perform coordinator.add_member(join_group.group_id, p_coordinator,
            array(select t.topic_id from coordinator.topics t where t.name = any (p_topics)));
    end if;
    select jsonb_agg(jsonb_build_object('topic_id', t.topic_id, 'name', t.name, 'partitions', t.partitions,
                                        'channel', t.messages::text) order by t.topic_id)
    into topics from coordinator.topics t where t.name = any (p_topics);
end
$$;
