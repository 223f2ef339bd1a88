create or replace function coordinator.group_state(p_groups int[]) returns table (
    group_id int, version bigint, planned_version bigint, members jsonb, claims jsonb,
    joined_s double precision, unplanned_s double precision
)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
-- What a plan is made from, in one snapshot per group.
-- members: [{"coordinator", "topic_ids", "draining"}]; claims: [[topic_id, partition, owner, free, target, paused, waiting_s, overdue]]
-- where free says that nobody alive owns it, paused that nothing of it may be fetched or handed over, waiting_s since when the target
-- is meant, overdue that the owner's lease is over but nobody could declare it dead. joined_s, unplanned_s: the age of the newest
-- join, and of the first one that no plan knows.
declare
    v_now timestamptz := coordinator.now_();
begin
    return query
    select g.group_id, g.version, g.planned_version,
           (select coalesce(jsonb_agg(jsonb_build_object('coordinator', m.coordinator, 'topic_ids', m.topic_ids,
                                                         'draining', o.state = 'draining')
                                      order by m.coordinator), '[]')
            from coordinator.members m join coordinator.coordinators o on o.coordinator = m.coordinator
            where m.group_id = g.group_id),
           (select coalesce(jsonb_agg(jsonb_build_array(c.topic_id, c.partition, c.owner, o.coordinator is null, t.coordinator,
                                                        exists (select from coordinator.pauses p
                                                                where p.group_id = c.group_id and p.topic_id = c.topic_id
                                                                  and p.partition = c.partition
                                                                  and (p.expires_at is null or p.expires_at > v_now)),
                                                        extract(epoch from v_now - t.assigned_at),
                                                        coalesce(o.lease_until < v_now, false))
                                      order by c.topic_id, c.partition), '[]')
            from coordinator.claims c
            left join coordinator.coordinators o on o.coordinator = c.owner and o.state <> 'dead'
            left join coordinator.targets t
              on t.group_id = c.group_id and t.topic_id = c.topic_id and t.partition = c.partition
            where c.group_id = g.group_id),
           extract(epoch from v_now - g.joined_at)::double precision,
           extract(epoch from v_now - g.unplanned_since)::double precision
    from coordinator.groups g where g.group_id = any (p_groups)
    order by g.group_id;
end
$$;
