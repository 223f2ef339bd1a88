create or replace function coordinator.exchange(
    p_coordinator uuid,
    p_groups int[],
    p_topics int[],
    p_partitions int[],
    p_epochs bigint[],
    p_seqs bigint[],
    p_hwms bigint[],
    p_settled text[],
    p_wants int[],
    p_hard jsonb default null
) returns table (
    ord int, status text, seq bigint, committed bigint, hwm bigint, high bigint, holes int, refused bigint[], refusal text
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- Settles what finished and raises the windows of all owned partitions at once; the arrays are parallel, one entry a claim.
-- p_settled: int8multirange of offsets that were acked, or proven burnt, since the last exchange. p_wants: by how many
-- offsets the window may grow; it ends at V + 1 at the latest. p_hard: what is more than an ack, see settle_hard. p_seqs, p_hwms: the newest progress the caller knows.
-- Returns, per entry (ord counts from 1): status and, where it is ok, the new progress; high is V in any case; holes counts the
-- ranges of done; refused are offsets whose dead letter could not be stored, refusal says why.
--   idle    nothing was settled and nothing is there to fetch: not locked, not written, not checked
--   ok      written
--   fenced  the claim is another's, or has another epoch, or is gone: nothing of the caller's was written
--   busy    somebody holds the claim's row; nothing was written, try again
--   stale   the newest progress is not the one the caller knows (an uncertain commit): nothing was written, resolve it
-- Raises: KG007 at another isolation level.
-- Locks: claim rows in key order, FOR NO KEY UPDATE (which lets transactional acks go on) SKIP LOCKED (one claim that
-- somebody holds must not fail the others).
-- What is done may lie above the window, after a takeover: then committed can pass the old hwm, and takes it along.
-- Race: the claim is locked in one statement and the progress read in a later one. In one statement the snapshot would be
-- older than the lock: an exchange that committed in between would be missed, and its settlements written over.
declare
    v_now timestamptz := coordinator.now_();
    v_highs bigint[];
    v_locked int[];
    v_owned int[];
    v_hard_ords int[] := '{}';
    v_empty_ords int[] := '{}';
    v_hard coordinator.hard_settled[] := '{}';
begin
    perform coordinator.check_subscribe(p_topics);
    perform coordinator.require_read_committed('exchange');
    v_highs := array(
        select coalesce(pg_sequence_last_value(t.offset_sequences[w.partition + 1]), -1)
        from unnest(p_topics, p_partitions) with ordinality as w(topic_id, partition, ord)
        left join coordinator.topics t on t.topic_id = w.topic_id
        order by w.ord);
    if p_hard is not null then
        v_empty_ords := array(select (e.j ->> 'o')::int from jsonb_array_elements(p_hard) as e(j) where e.j ->> 'k' = 'empty');
        v_hard_ords := array(select distinct (e.j ->> 'o')::int from jsonb_array_elements(p_hard) as e(j));
    end if;
    select coalesce(array_agg(l.ord), '{}'), coalesce(array_agg(l.ord) filter (where l.owned), '{}')
    into v_locked, v_owned
    from (
        select w.ord, c.owner = p_coordinator and c.epoch = w.epoch as owned
        from coordinator.claims c
        join unnest(p_groups, p_topics, p_partitions, p_epochs, p_hwms, p_settled, p_wants, v_highs)
             with ordinality as w(group_id, topic_id, partition, epoch, hwm, settled, want, high, ord)
          on c.group_id = w.group_id and c.topic_id = w.topic_id and c.partition = w.partition
        where w.settled <> '{}' or (w.want > 0 and w.high >= w.hwm) or w.ord = any (v_hard_ords)
        order by c.group_id, c.topic_id, c.partition
        for no key update of c skip locked
    ) l;
    if p_hard is not null and v_owned <> '{}' then
        -- Only what the checks below will let through; the claims are locked, so nothing can come between.
        v_hard := array(
            select (h.ord, range_agg(h.done), array_agg(h.refused) filter (where h.refused is not null), max(h.refusal))::coordinator.hard_settled
            from coordinator.settle_hard(p_groups, p_topics, p_partitions, p_epochs, array(
                select w.ord::int
                from unnest(p_groups, p_topics, p_partitions, p_seqs)
                     with ordinality as w(group_id, topic_id, partition, seq, ord)
                cross join lateral (
                    select p.seq from coordinator.progress p
                    where p.group_id = w.group_id and p.topic_id = w.topic_id and p.partition = w.partition
                    order by p.seq desc limit 1) l
                where w.ord = any (v_owned) and l.seq = w.seq), p_hard) h
            group by h.ord);
    end if;
    return query
    with entry as (
        select w.*, w.ord = any (v_locked) as locked, w.ord = any (v_owned) as owned, h.refused, h.refusal, w.ord = any (v_empty_ords) as empties,
               w.settled + coalesce(h.done, '{}') as finished,
               w.settled <> '{}' or (w.want > 0 and w.high >= w.hwm) or w.ord = any (v_hard_ords) as writes
        from unnest(p_groups, p_topics, p_partitions, p_epochs, p_seqs, p_hwms, p_settled::int8multirange[], p_wants, v_highs)
             with ordinality as w(group_id, topic_id, partition, epoch, seq, hwm, settled, want, high, ord)
        left join unnest(v_hard) as h on h.ord = w.ord
    ), advance as (
        select e.ord, e.group_id, e.topic_id, e.partition, e.epoch, l.seq, l.hwm, e.want, e.high, l.at, l.oldest_seq, s.done, e.empties,
               lower(int8multirange(int8range(l.committed, null)) - s.done) as committed,
               date_bin('10 seconds', l.at, 'epoch') <> date_bin('10 seconds', v_now, 'epoch') as keeps
        from entry e
        cross join lateral (
            select p.* from coordinator.progress p
            where p.group_id = e.group_id and p.topic_id = e.topic_id and p.partition = e.partition
            order by p.seq desc limit 1) l
        cross join lateral (
            select l.done + e.finished * int8multirange(int8range(l.committed, l.hwm)) as done) s
        where e.owned and l.seq = e.seq
    ), history as (
        -- One row of each ten seconds is kept for a quarter of an hour; every other write deletes the row before it.
        select a.ord, case when not a.keeps then a.seq when o.at < v_now - interval '15 minutes' then o.seq end as delete_seq,
               case when a.keeps and (o.at is null or o.at < v_now - interval '15 minutes') then
                   (select min(p.seq) from coordinator.progress p
                    where p.group_id = a.group_id and p.topic_id = a.topic_id and p.partition = a.partition
                      and p.seq > a.oldest_seq)
               else a.oldest_seq end as oldest_seq
        from advance a
        left join coordinator.progress o
          on a.keeps and o.group_id = a.group_id and o.topic_id = a.topic_id and o.partition = a.partition
             and o.seq = a.oldest_seq
    ), inserted as (
        insert into coordinator.progress as i (group_id, topic_id, partition, seq, epoch, committed, hwm, done, oldest_seq, at)
        select a.group_id, a.topic_id, a.partition, a.seq + 1, a.epoch, a.committed,
               case when a.empties then a.committed else greatest(a.hwm, a.committed, least(a.high + 1, a.hwm + a.want)) end,
               a.done * int8multirange(int8range(a.committed, null)), h.oldest_seq, v_now
        from advance a join history h on h.ord = a.ord
        returning i.group_id, i.topic_id, i.partition, i.seq, i.committed, i.hwm, i.done
    ), deleted as (
        delete from coordinator.progress p
        using advance a join history h on h.ord = a.ord
        where p.group_id = a.group_id and p.topic_id = a.topic_id and p.partition = a.partition and p.seq = h.delete_seq
    )
    select e.ord::int,
           case when not e.writes then 'idle'
                when i.seq is not null then 'ok'
                when e.owned then 'stale'
                when e.locked or not exists (
                    select from coordinator.claims c
                    where c.group_id = e.group_id and c.topic_id = e.topic_id and c.partition = e.partition) then 'fenced'
                else 'busy' end,
           i.seq, i.committed, i.hwm, e.high, (select count(*)::int from unnest(i.done)), e.refused, e.refusal
    from entry e
    left join inserted i on i.group_id = e.group_id and i.topic_id = e.topic_id and i.partition = e.partition
    order by e.ord;
end
$$;
