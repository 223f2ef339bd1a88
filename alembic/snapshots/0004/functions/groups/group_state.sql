create or replace function coordinator.group_state(p_groups int[]) returns table (
    group_id int, version bigint, planned_version bigint, members jsonb, claims jsonb
)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
-- What a plan is made from, in one snapshot per group.
-- members: [{"coordinator", "topic_ids"}]; claims: [[topic_id, partition, owner, free, target, paused]] where free says that nobody
-- alive owns it, and paused that nothing of it may be fetched or handed over.
begin
    return query
    select g.group_id, g.version, g.planned_version,
           (select coalesce(jsonb_agg(jsonb_build_object('coordinator', m.coordinator, 'topic_ids', m.topic_ids)
                                      order by m.coordinator), '[]')
            from coordinator.members m where m.group_id = g.group_id),
           (select coalesce(jsonb_agg(jsonb_build_array(c.topic_id, c.partition, c.owner, o.coordinator is null, t.coordinator,
                                                        exists (select from coordinator.pauses p
                                                                where p.group_id = c.group_id and p.topic_id = c.topic_id
                                                                  and p.partition = c.partition
                                                                  and (p.expires_at is null or p.expires_at > coordinator.now_())))
                                      order by c.topic_id, c.partition), '[]')
            from coordinator.claims c
            left join coordinator.coordinators o on o.coordinator = c.owner and o.state <> 'dead'
            left join coordinator.targets t
              on t.group_id = c.group_id and t.topic_id = c.topic_id and t.partition = c.partition
            where c.group_id = g.group_id)
    from coordinator.groups g where g.group_id = any (p_groups)
    order by g.group_id;
end
$$;
