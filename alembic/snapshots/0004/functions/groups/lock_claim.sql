create or replace function coordinator.lock_claim(p_group_id int, p_group text, p_topic_id int, p_topic text, p_partition int) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s'
as $$
-- Takes a claim's row FOR UPDATE, waiting for exchanges and for transactional acks whose COMMIT is under way.
-- Raises: KG003 no such claim; KG004 somebody holds the row for longer than five seconds.
begin
    perform 1 from coordinator.claims c
    where c.group_id = p_group_id and c.topic_id = p_topic_id and c.partition = p_partition
    for update;
    if not found then
        raise exception using errcode = 'KG003', message = format(
            'group %L has no partition %s of topic %L', p_group, p_partition, p_topic);
    end if;
exception when lock_not_available then
    raise exception using errcode = 'KG004', message = format(
        'partition %s of topic %L is held in group %L by a transaction that does not end', p_partition, p_topic, p_group),
        hint = 'Try again; if it stays so, look in pg_stat_activity for who has been idle in transaction.';
end
$$;
