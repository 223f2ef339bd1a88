create or replace function coordinator.fetch_retries(
    p_groups int[],
    p_topics int[],
    p_partitions int[],
    p_epochs bigint[],
    p_held text[]
) returns table (
    ord int, "offset" bigint, published_at timestamptz, message_id uuid, key text, headers text, content_type text, payload bytea,
    fails int, crashes int, alone boolean, replays int
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
-- The parked messages that were handed out in the claims' epochs, but for those that the caller holds (p_held, int8multirange).
-- Returns: in offset order per entry (ord counts from 1). The plans are pinned to the keys, see settle_hard.
declare
    v_topic record;
begin
    perform coordinator.check_subscribe(p_topics);
    for v_topic in
        select w.topic_id, array_agg(w.ord::int) as ords, array_agg(w.partition) as partitions,
               array_agg(r."offset") as froms, array_agg(r."offset" + 1) as tos
        from unnest(p_groups, p_topics, p_partitions, p_epochs, p_held::int8multirange[])
             with ordinality as w(group_id, topic_id, partition, epoch, held, ord)
        join coordinator.retries r
          on r.group_id = w.group_id and r.topic_id = w.topic_id and r.partition = w.partition
             and r.dispatched_epoch = w.epoch and not r."offset" <@ w.held
        group by w.topic_id
    loop
        return query
        select w.ord, w.lo, coalesce(r.published_at, m.published_at), coalesce(r.message_id, m.message_id),
               r.key, coalesce(r.headers::text, m.headers), coalesce(r.content_type, m.content_type),
               coalesce(r.payload, m.payload), r.fails, r.crashes, r.alone, r.replays
        from unnest(v_topic.ords, v_topic.partitions, v_topic.froms) as w(ord, partition, lo)
        join coordinator.retries r
          on r.group_id = p_groups[w.ord] and r.topic_id = v_topic.topic_id and r.partition = w.partition and r."offset" = w.lo
        left join coordinator.read_windows(v_topic.topic_id, v_topic.ords, v_topic.partitions, v_topic.froms, v_topic.tos) m
          on m.ord = w.ord and m."offset" = w.lo and r.payload is null
        where coalesce(r.payload, m.payload) is not null
        order by w.ord, w.lo;
    end loop;
end
$$;
