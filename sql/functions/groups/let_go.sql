create or replace function coordinator.let_go(p_group text, p_topic text default null, p_partitions int[] default null) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- Ends a hold whose purpose was given up; a seek or skip ends its own by itself. Raises: as pause.
declare
    v_group int := coordinator.group_id_of(p_group);
begin
    -- In the order of keys: whoever moves several claims in one transaction takes these rows in that order, too.
    perform 1 from coordinator.pauses p
    join coordinator.claims_named(v_group, p_group, p_topic, p_partitions) c
      on p.group_id = v_group and p.topic_id = c.topic_id and p.partition = c."partition" and p.kind = 'hold'
    order by p.topic_id, p.partition
    for update of p;
    delete from coordinator.pauses p using coordinator.claims_named(v_group, p_group, p_topic, p_partitions) c
    where p.group_id = v_group and p.topic_id = c.topic_id and p.partition = c."partition" and p.kind = 'hold';
    perform pg_notify('coordinator.groups', '');
end
$$;
