create or replace function coordinator.examine_upkeep() returns table (
    problem text, subject text, found bigint, bound bigint, since timestamptz
)
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
    -- For doctor: what somebody should have done by now, and since when. overdue: scheduled messages; expired: dedup keys;
    -- unreaped: processes whose lease is over, with nobody there to say so; letters: dead letters beside their bound.
    select 'overdue', t.name, count(*), null::bigint, min(s.next_at)
    from coordinator.scheduled s
    join coordinator.topics t on t.topic_id = s.topic_id
    where s.next_at < coordinator.now_()
      and not exists (select from coordinator.schedule_pauses p
                      where p.topic_id = s.topic_id and p.paused_until > coordinator.now_())
    group by t.name
    union all
    select 'paused', t.name, (select count(*) from coordinator.scheduled s where s.topic_id = p.topic_id), p.attempts, p.paused_until
    from coordinator.schedule_pauses p
    join coordinator.topics t on t.topic_id = p.topic_id
    union all
    select 'expired', 'dedup', count(*), null, min(d.expires_at)
    from coordinator.dedup d where d.expires_at < coordinator.now_() having count(*) > 0
    union all
    select 'unreaped', c.client_id || '@' || c.host || ' pid ' || c.pid,
           (select count(*) from coordinator.claims k where k.owner = c.coordinator), null, c.lease_until
    from coordinator.coordinators c
    where c.state <> 'dead' and c.lease_until < coordinator.now_()
    union all
    select 'letters', g.name, count(d.group_id), g.max_dead_letters, max(d.died_at)
    from coordinator.groups g
    left join coordinator.dead_letters d on d.group_id = g.group_id
    group by g.group_id
$$;
