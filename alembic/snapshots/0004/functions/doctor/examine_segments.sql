create or replace function coordinator.examine_segments() returns table (
    topic text, problem text, segment bigint, subject text
)
language sql volatile security definer
set search_path = pg_catalog, pg_temp
set quote_all_identifiers = off
as $$
    -- For doctor: segments that are not as they should be. problem: missing (the current segment has no row or no table,
    -- after a restore of sequences that are younger than the rows), or detaching (DETACH CONCURRENTLY was cut off, and
    -- nothing else can be detached until it is finished). One that is still at work holds its lock.
    select t.name, 'missing', c.segment, t.segment_sequence::text
    from coordinator.topics t
    cross join lateral (select pg_sequence_last_value(t.segment_sequence) as segment) c
    where not exists (select from coordinator.segments s where s.topic_id = t.topic_id and s.segment = c.segment)
       or to_regclass(format('%s_s%s', t.messages, c.segment)) is null
    union all
    select t.name, 'detaching', null, i.inhrelid::regclass::text
    from coordinator.topics t
    join pg_inherits i on i.inhparent = t.messages
    where i.inhdetachpending
      and not exists (select from pg_locks l
                      where l.locktype = 'relation' and l.relation = t.messages and l.mode = 'ShareUpdateExclusiveLock'
                        and l.database = (select d.oid from pg_database d where d.datname = current_database()))
$$;
