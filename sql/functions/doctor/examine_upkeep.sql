create or replace function coordinator.examine_upkeep() returns table (
    problem text, subject text, found bigint, bound bigint, since timestamptz, detail text
)
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
    -- For doctor: what somebody should have done by now, and since when. overdue: scheduled messages; expired: dedup keys;
    -- unreaped: processes whose lease is over, with nobody there to say so; letters: dead letters beside their bound;
    -- failing: a task of maintenance, since when it has not gone well; idle: all of maintenance, since its last task.
    select 'overdue', t.name, count(*), null::bigint, min(s.next_at), null::text
    from coordinator.scheduled s
    join coordinator.topics t on t.topic_id = s.topic_id
    where s.next_at < coordinator.now_()
      and not exists (select from coordinator.schedule_pauses p
                      where p.topic_id = s.topic_id and p.paused_until > coordinator.now_())
    group by t.name
    union all
    select 'paused', t.name, (select count(*) from coordinator.scheduled s where s.topic_id = p.topic_id), p.attempts, p.paused_until, p.last_error
    from coordinator.schedule_pauses p
    join coordinator.topics t on t.topic_id = p.topic_id
    union all
    select 'expired', 'dedup', count(*), null, min(d.expires_at), null
    from coordinator.dedup d where d.expires_at < coordinator.now_() having count(*) > 0
    union all
    select 'unreaped', c.client_id || '@' || c.host || ' pid ' || c.pid,
           (select count(*) from coordinator.claims k where k.owner = c.coordinator), null, c.lease_until, null
    from coordinator.coordinators c
    where c.state <> 'dead' and c.lease_until < coordinator.now_()
    union all
    select 'letters', g.name, count(d.group_id), g.max_dead_letters, max(d.died_at), null
    from coordinator.groups g
    left join coordinator.dead_letters d on d.group_id = g.group_id
    group by g.group_id
    union all
    select 'failing', m.task, 1, null, m.succeeded_at, m.error from coordinator.maintenance m where m.error is not null
    union all
    select 'idle', 'maintenance', count(*), null,
           greatest(min(t.created_at), (select max(m.succeeded_at) from coordinator.maintenance m)), null
    from coordinator.topics t having count(*) > 0
$$;
