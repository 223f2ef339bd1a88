create or replace function coordinator.group_totals() returns table (
    "group" text, members bigint, dead_letters bigint, skipped bigint
)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
-- Per group: members whose lease runs, dead letters it has (which its bound limits), and offsets that it was made to skip.
begin
    return query
    select g.name,
           (select count(*) from coordinator.members m
            join coordinator.coordinators c on c.coordinator = m.coordinator and c.lease_until >= coordinator.now_()
            where m.group_id = g.group_id and c.state <> 'dead'),
           (select count(*) from coordinator.dead_letters d where d.group_id = g.group_id),
           (select coalesce(sum(coordinator.multirange_size(s.offsets)), 0)::bigint from coordinator.skips s
            where s.group_id = g.group_id and s.reason = 'retention')
    from coordinator.groups g
    order by g.name;
end
$$;
