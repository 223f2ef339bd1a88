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
    v_locked_ords int[];
    v_owned_ords int[];
    -- By place: to look for a place in a list of places would take the square of their number.
    v_locked boolean[] := array_fill(false, array[cardinality(p_groups)]);
    v_owned boolean[] := array_fill(false, array[cardinality(p_groups)]);
    v_ord int;
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
    into v_locked_ords, v_owned_ords
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
    if p_hard is not null and v_owned_ords <> '{}' then
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
                where w.ord = any (v_owned_ords) and l.seq = w.seq), p_hard) h
            group by h.ord);
    end if;
    foreach v_ord in array v_locked_ords loop
        v_locked[v_ord] := true;
    end loop;
    foreach v_ord in array v_owned_ords loop
        v_owned[v_ord] := true;
    end loop;
    return query
    with entry as (
        select w.*, v_locked[w.ord] as locked, v_owned[w.ord] as owned, h.refused, h.refusal, w.ord = any (v_empty_ords) as empties,
               w.settled + coalesce(h.done, '{}') as finished,
               w.settled <> '{}' or (w.want > 0 and w.high >= w.hwm) or w.ord = any (v_hard_ords) as writes
        from unnest(p_groups, p_topics, p_partitions, p_epochs, p_seqs, p_hwms, p_settled::int8multirange[], p_wants, v_highs)
             with ordinality as w(group_id, topic_id, partition, epoch, seq, hwm, settled, want, high, ord)
        left join unnest(v_hard) as h on h.ord = w.ord
    ), advance as materialized (
        -- Every entry, so that nothing has to be joined again; what is not written has no before_seq.
        select e.*, l.seq as before_seq, a.committed, r.delete_seq, r.oldest_seq,
               case when e.empties then a.committed
                    when l.seq is not null then greatest(l.hwm, a.committed, least(e.high + 1, l.hwm + e.want)) end as next_hwm,
               s.done * int8multirange(int8range(a.committed, null)) as done
        from entry e
        left join lateral (
            select p.* from coordinator.progress p
            where e.owned and p.group_id = e.group_id and p.topic_id = e.topic_id and p.partition = e.partition
            order by p.seq desc limit 1) l on l.seq = e.seq
        cross join lateral (select l.done + e.finished * int8multirange(int8range(l.committed, l.hwm)) as done) s
        cross join lateral (select lower(int8multirange(int8range(l.committed, null)) - s.done) as committed) a
        -- One row of each ten seconds is kept for a quarter of an hour; every other write deletes the row before it.
        cross join lateral (
            select date_bin('10 seconds', l.at, 'epoch') <> date_bin('10 seconds', v_now, 'epoch') as keeps) k
        left join lateral (
            select p.at, p.seq from coordinator.progress p
            where k.keeps and p.group_id = e.group_id and p.topic_id = e.topic_id and p.partition = e.partition
              and p.seq = l.oldest_seq) o on true
        cross join lateral (
            select case when not k.keeps then l.seq when o.at < v_now - interval '15 minutes' then o.seq end as delete_seq,
                   case when k.keeps and (o.at is null or o.at < v_now - interval '15 minutes') then
                       (select min(p.seq) from coordinator.progress p
                        where p.group_id = e.group_id and p.topic_id = e.topic_id and p.partition = e.partition
                          and p.seq > l.oldest_seq)
                   else l.oldest_seq end as oldest_seq) r
    ), inserted as (
        insert into coordinator.progress (group_id, topic_id, partition, seq, epoch, committed, hwm, done, oldest_seq, at)
        select a.group_id, a.topic_id, a.partition, a.before_seq + 1, a.epoch, a.committed, a.next_hwm, a.done, a.oldest_seq, v_now
        from advance a
        where a.before_seq is not null
    ), deleted as (
        delete from coordinator.progress p
        using advance a
        where p.group_id = a.group_id and p.topic_id = a.topic_id and p.partition = a.partition and p.seq = a.delete_seq
    )
    select a.ord::int,
           case when not a.writes then 'idle'
                when a.before_seq is not null then 'ok'
                when a.owned then 'stale'
                when a.locked or not exists (
                    select from coordinator.claims c
                    where c.group_id = a.group_id and c.topic_id = a.topic_id and c.partition = a.partition) then 'fenced'
                else 'busy' end,
           a.before_seq + 1, a.committed, a.next_hwm, a.high, (select count(*)::int from unnest(a.done)), a.refused, a.refusal
    from advance a
    order by a.ord;
end
$$;
