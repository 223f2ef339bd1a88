create or replace function coordinator.message_states(p_topic text, p_partition int, p_offset bigint) returns table (
    "group" text, state text, epoch bigint, member_id uuid, client_id text, host text, fails int, crashes int, replays int,
    next_at timestamptz, reason text, error text, errors jsonb, since timestamptz
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- What one offset is to each group that reads the topic, by name of the group:
--   early    below the group's start: never its business       future   not handed out to it yet
--   open     handed out: waits in memory, or a handler is at it
--   waiting, behind, running: parked, until next_at, until its key is free, or handed out again
--   dead     given up, with reason and history                  skipped  passed unsettled, by reason
--   settled  acked; or no message at all, rolled back
-- since: when that began, where it is known. Durable facts only: an ack that is not written yet is not seen.
-- Raises: KG003 no such topic or partition; KG008 no right to subscribe to it: errors may quote what handlers have seen.
declare
    v_topic coordinator.topics;
begin
    select t.* into v_topic from coordinator.topics t where t.name = p_topic;
    if not found then
        raise exception using errcode = 'KG003', message = format('there is no topic %L', p_topic),
            hint = coordinator.topic_hint(p_topic);
    end if;
    perform coordinator.check_subscribe(array[v_topic.topic_id]);
    if p_partition is null or p_partition < 0 or p_partition >= v_topic.partitions then
        raise exception using errcode = 'KG003', message = format(
            'topic %L has partitions 0 to %s, found %s', p_topic, v_topic.partitions - 1, p_partition);
    end if;
    return query
    select g.name,
           case when p_offset < c.start_offset and r.fails is null and d.reason is null then 'early'
                -- An ack of a handler outranks its retries row until the owner has folded it.
                when a.found then 'settled'
                when r.dispatched_epoch is not null then 'running'
                when r.behind_key then 'behind'
                when r.fails is not null then 'waiting'
                when d.reason is not null then 'dead'
                when s.reason is not null then 'skipped'
                when p_offset < l.committed or l.done @> p_offset then 'settled'
                when p_offset >= l.hwm then 'future'
                else 'open' end,
           c.epoch, c.owner, o.client_id, o.host, coalesce(r.fails, d.attempts, 0), coalesce(r.crashes, d.crashes, k.crashes::int),
           coalesce(r.replays, d.replays, 0), r.next_at, coalesce(d.reason, s.reason),
           coalesce(r.errors -> -1 ->> 'error', d.error), coalesce(r.errors, d.errors, '[]'), coalesce(r.created_at, d.died_at, s.at)
    from coordinator.claims c
    join coordinator.groups g on g.group_id = c.group_id
    cross join lateral (
        select p.committed, p.hwm, p.done from coordinator.progress p
        where p.group_id = c.group_id and p.topic_id = c.topic_id and p.partition = c.partition
        order by p.seq desc limit 1) l
    cross join lateral (
        select exists (select from coordinator.acks x
                       where x.group_id = c.group_id and x.topic_id = c.topic_id and x.partition = c.partition
                         and x."offset" = p_offset
                         and x.replay = coalesce((
                             select y.replays from coordinator.retries y
                             where y.group_id = c.group_id and y.topic_id = c.topic_id and y.partition = c.partition
                               and y."offset" = p_offset), x.replay)) as found) a
    cross join lateral (
        select count(*) as crashes from coordinator.crashes x
        where x.group_id = c.group_id and x.topic_id = c.topic_id and x.partition = c.partition and x.offsets @> p_offset) k
    left join coordinator.retries r
        on r.group_id = c.group_id and r.topic_id = c.topic_id and r.partition = c.partition and r."offset" = p_offset
    left join coordinator.dead_letters d
        on d.group_id = c.group_id and d.topic_id = c.topic_id and d.partition = c.partition and d."offset" = p_offset
    left join lateral (
        select x.reason, x.at from coordinator.skips x
        where x.group_id = c.group_id and x.topic_id = c.topic_id and x.partition = c.partition and x.offsets @> p_offset
        order by x.skip_id desc limit 1) s on true
    left join coordinator.coordinators o on o.coordinator = c.owner
    where c.topic_id = v_topic.topic_id and c.partition = p_partition
    order by g.name;
end
$$;
