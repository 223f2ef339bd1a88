create or replace function coordinator.gap_pass(
    p_topics int[],
    p_partitions int[],
    p_gaps text[]
) returns table (
    ord int, high bigint, holders text[],
    "offset" bigint, published_at timestamptz, message_id uuid, key text, headers text, content_type text, payload bytea
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- One pass of evidence about offsets that a reader has found without a row. p_gaps: int8multirange per entry.
-- Returns: per entry (ord counts from 1) one row with high and holders, the open publishers of the partition; then a row for
-- each message that has appeared in a gap.
-- Raises: KG007 at another isolation level; 25006 on a standby: publishers hold their locks on the primary alone, so that
-- every gap would seem to have no publisher.
-- Race: V, then L, then S, each in its own statement. A publisher takes its lock, then its offset, inserts, and lets go of
-- the lock when its outcome is visible. So who holds an offset at or below V and is not in L has finished, and S, whose
-- snapshot is younger than L, shows the row if there is one. With S before L a publisher that commits between the two is in
-- neither; without V an offset handed out after L was read would be taken for an old one.
-- The virtual transaction is what stays the same when a transaction is prepared.
declare
    v_highs bigint[];
    v_holders record;
    v_topic record;
begin
    perform coordinator.check_subscribe(p_topics);
    perform coordinator.require_read_committed('gap_pass');
    if pg_is_in_recovery() then
        raise exception using errcode = 'read_only_sql_transaction', message = 'gap_pass runs on a standby, it must run on the primary';
    end if;
    v_highs := array(
        select coalesce(pg_sequence_last_value(t.offset_sequences[w.partition + 1]), -1)
        from unnest(p_topics, p_partitions) with ordinality as w(topic_id, partition, ord)
        left join coordinator.topics t on t.topic_id = w.topic_id
        order by w.ord);

    return query
    with entry as (
        select w.ord::int as ord, k.key, k.key >> 32 & 4294967295 as classid, k.key & 4294967295 as objid
        from unnest(p_topics, p_partitions) with ordinality as w(topic_id, partition, ord)
        cross join lateral (values (coordinator.lock_key(w.topic_id, w.partition)),
                                   (coordinator.lock_key(w.topic_id, -1))) as k(key)
    ), open as (
        select l.classid::bigint as classid, l.objid::bigint as objid, l.virtualtransaction
        from pg_locks l
        where l.locktype = 'advisory' and l.objsubid = 1 and l.mode = 'ShareLock'
          and l.database = (select d.oid from pg_database d where d.datname = current_database())
    )
    select e.ord, v_highs[e.ord], coalesce(array_agg(distinct o.virtualtransaction) filter (where o.virtualtransaction is not null), '{}'),
           null::bigint, null::timestamptz, null::uuid, null::text, null::text, null::text, null::bytea
    from entry e left join open o on o.classid = e.classid and o.objid = e.objid
    group by e.ord;

    for v_topic in
        select w.topic_id, array_agg(w.ord::int) as ords, array_agg(w.partition) as partitions,
               array_agg(lower(r.range)) as froms, array_agg(upper(r.range)) as tos
        from unnest(p_topics, p_partitions, p_gaps::int8multirange[]) with ordinality as w(topic_id, partition, gaps, ord)
        cross join lateral unnest(w.gaps) as r(range)
        group by w.topic_id
    loop
        return query select m.ord, null::bigint, null::text[], m."offset", m.published_at, m.message_id, m.key, m.headers,
                            m.content_type, m.payload
        from coordinator.read_windows(v_topic.topic_id, v_topic.ords, v_topic.partitions, v_topic.froms, v_topic.tos) m;
    end loop;
end
$$;
