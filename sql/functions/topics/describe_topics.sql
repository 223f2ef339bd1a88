create or replace function coordinator.describe_topics(p_topics text[] default null) returns table (
    topic_id int, name text, partitions int, max_message_bytes int, wake boolean, channel text, segment bigint,
    first_segment int, created_at timestamptz, high_offsets bigint[], bytes bigint,
    dedup_window_s double precision, max_backlog bigint, retention_s double precision, retention_bytes bigint, unconsumed text,
    segment_max_age_s double precision, segment_max_bytes bigint, first_offsets bigint[]
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set quote_all_identifiers = off
as $$
-- Topics by name, all of them for null; high_offsets are -1 where nothing was handed out, first_offsets the lowest that are kept, bytes are those of all segments.
-- Raises: KG003 for the first that does not exist.
declare
    v_missing text;
begin
    select u.n into v_missing from unnest(p_topics) as u(n)
    where not exists (select from coordinator.topics t where t.name = u.n) limit 1;
    if found then
        raise exception using errcode = 'KG003', message = format('there is no topic %L', v_missing),
            hint = coordinator.topic_hint(v_missing);
    end if;
    return query
    select t.topic_id, t.name, t.partitions, t.max_message_bytes, t.wake, t.messages::text,
           pg_sequence_last_value(t.segment_sequence), t.first_segment, t.created_at,
           array(select coalesce(pg_sequence_last_value(u.s), -1) from unnest(t.offset_sequences) with ordinality as u(s, n)
                 order by u.n),
           (select coalesce(sum(pg_total_relation_size(i.inhrelid)), 0)::bigint from pg_inherits i
            where i.inhparent = t.messages),
           t.dedup_window_s, t.max_backlog, t.retention_s, t.retention_bytes, t.unconsumed, t.segment_max_age_s,
           t.segment_max_bytes,
           array(select coalesce(t.first_offsets[p.n], 0) from generate_series(1, t.partitions) as p(n) order by p.n)
    from coordinator.topics t
    where p_topics is null or t.name = any (p_topics)
    order by t.name;
end
$$;
