create or replace function coordinator.resolve(
    p_coordinator uuid,
    p_groups int[],
    p_topics int[],
    p_partitions int[],
    p_epochs bigint[]
) returns table (ord int, status text, seq bigint, committed bigint, hwm bigint, done text, acked text)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
-- What became of an exchange whose answer was lost: the newest progress of claims, read under the fence.
-- Returns: per entry (ord counts from 1) ok with the progress, fenced, or busy: somebody holds the claim's row, ask again. acked: what handlers acked in their own transactions.
-- Raises: KG007 at another isolation level.
-- Locks: claim rows in key order, FOR NO KEY UPDATE SKIP LOCKED: a backend that is still committing the exchange holds them, and
-- so may somebody else, who must not keep the other claims waiting.
-- Race: the rows are locked first and the progress is read in a later statement, so that it includes that commit.
declare
    v_owned int[];
    v_locked int[];
begin
    perform coordinator.require_read_committed('resolve');
    select coalesce(array_agg(l.ord) filter (where l.owned), '{}'), coalesce(array_agg(l.ord), '{}') into v_owned, v_locked
    from (
        select w.ord, c.owner = p_coordinator and c.epoch = w.epoch as owned
        from coordinator.claims c
        join unnest(p_groups, p_topics, p_partitions, p_epochs) with ordinality as w(group_id, topic_id, partition, epoch, ord)
          on c.group_id = w.group_id and c.topic_id = w.topic_id and c.partition = w.partition
        order by c.group_id, c.topic_id, c.partition
        for no key update of c skip locked
    ) l;
    return query
    select w.ord::int, case when w.ord = any (v_owned) then 'ok'
                              when w.ord = any (v_locked) or not exists (
                                  select from coordinator.claims c
                                  where c.group_id = w.group_id and c.topic_id = w.topic_id and c.partition = w.partition)
                                  then 'fenced'
                              else 'busy' end, l.seq, l.committed, l.hwm, l.done::text,
           coalesce((select range_agg(int8range(a."offset", a."offset" + 1)) from coordinator.acks a
                     where a.group_id = w.group_id and a.topic_id = w.topic_id and a.partition = w.partition), '{}')::text
    from unnest(p_groups, p_topics, p_partitions) with ordinality as w(group_id, topic_id, partition, ord)
    left join lateral (
        select p.* from coordinator.progress p
        where p.group_id = w.group_id and p.topic_id = w.topic_id and p.partition = w.partition
        order by p.seq desc limit 1) l on true
    order by w.ord;
end
$$;
