create or replace function coordinator.purge(p_group text, p_topic text, p_partition int, p_offsets bigint[]) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- Deletes dead letters of one partition for good; those that somebody is replaying are skipped.
-- Returns: how many. Raises: KG003 no such group.
declare
    v_group int := coordinator.group_id_of(p_group);
    v_count bigint;
begin
    delete from coordinator.dead_letters d
    where d.ctid = any (array(
        select x.ctid from coordinator.dead_letters x
        join coordinator.topics t on t.topic_id = x.topic_id
        where x.group_id = v_group and t.name = p_topic and x.partition = p_partition and x."offset" = any (p_offsets)
        order by x."offset"
        for update of x skip locked));
    get diagnostics v_count = row_count;
    return v_count;
end
$$;
