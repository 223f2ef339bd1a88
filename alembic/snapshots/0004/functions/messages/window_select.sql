create or replace function coordinator.window_select(p_relation text, p_segment bigint) returns text
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
-- The text that reads windows of one segment: $1 to $4 are the parallel arrays of the windows' names, partitions, first offsets
-- and ends. p_relation: of the topic, quoted already.
-- Returns: for `execute`, under the pinned plans of read_windows.
select format(
    'select w.ord, m."offset", m.published_at, m.message_id, m.key, m.headers, m.content_type, m.payload '
    'from unnest($1, $2, $3, $4) as w(ord, partition, lo, hi) cross join lateral ('
    '  select r."offset", r.published_at, r.message_id, r.key, r.headers::text as headers, r.content_type, r.payload'
    '  from %s_s%s r where r."partition" = w.partition and r."offset" >= w.lo and r."offset" < w.hi'
    '  order by r."offset") m', p_relation, p_segment)
$$;
