create or replace function coordinator.stuck_claims(p_groups int[] default null) returns table (
    group_id int, topic_id int, "partition" int, owner uuid, "group" text, topic text
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- Claims that somebody could take and nobody can: their owner is gone, or its lease is over, and somebody holds their row. SKIP
-- LOCKED, by which claims are taken and the dead are declared, passes them for as long as that lasts.
-- p_groups: null for all.
-- Locks: the rows that are free, for a moment; given back before it returns.
declare
    v_candidates text[];
    v_free text[];
begin
    v_candidates := array(
        select c.ctid::text from coordinator.claims c
        left join coordinator.coordinators o on o.coordinator = c.owner and o.state <> 'dead'
        where (p_groups is null or c.group_id = any (p_groups))
          and (o.coordinator is null or o.lease_until < coordinator.now_()));
    if v_candidates = '{}' then
        return;
    end if;
    begin
        v_free := array(select c.ctid::text from coordinator.claims c where c.ctid = any (v_candidates::tid[])
                        for update skip locked);
        -- Only a subtransaction that fails gives row locks back before its transaction ends.
        raise exception using errcode = 'KG000';
    exception when sqlstate 'KG000' then
        null;
    end;
    return query
    select c.group_id, c.topic_id, c.partition, c.owner, g.name, t.name
    from coordinator.claims c
    join coordinator.groups g on g.group_id = c.group_id
    join coordinator.topics t on t.topic_id = c.topic_id
    where c.ctid = any (v_candidates::tid[]) and not c.ctid::text = any (v_free)
    order by c.group_id, c.topic_id, c.partition;
end
$$;
