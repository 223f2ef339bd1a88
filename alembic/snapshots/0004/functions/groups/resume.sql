create or replace function coordinator.resume(
    p_group text,
    p_topic text default null,
    p_partitions int[] default null,
    p_reason text default null
) returns table (topic text, "partition" int, changed boolean)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- Ends a pause, also one that a seek has left which was cut off. Returns, raises: as pause; changed: it was paused.
declare
    v_group int := coordinator.group_id_of(p_group);
begin
    -- In the order of keys, as in let_go.
    perform 1 from coordinator.pauses p
    join coordinator.claims_named(v_group, p_group, p_topic, p_partitions) c
      on p.group_id = v_group and p.topic_id = c.topic_id and p.partition = c."partition"
    order by p.topic_id, p.partition, p.kind
    for update of p;
    return query
    with wanted as (
        select c.* from coordinator.claims_named(v_group, p_group, p_topic, p_partitions) c
    ), ended as (
        delete from coordinator.pauses p using wanted w
        where p.group_id = v_group and p.topic_id = w.topic_id and p.partition = w."partition"
        returning p.topic_id, p.partition
    )
    select w.topic, w."partition",
           exists (select from ended e where e.topic_id = w.topic_id and e.partition = w."partition")
    from wanted w
    order by w.topic, w."partition";
    perform coordinator.record('resume', p_group, v_group, p_topic, null, p_reason => p_reason,
                               p_detail => jsonb_build_object('partitions', p_partitions));
    perform pg_notify('coordinator.groups', '');
end
$$;
