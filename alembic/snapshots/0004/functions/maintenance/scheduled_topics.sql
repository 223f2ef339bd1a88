create or replace function coordinator.scheduled_topics() returns table (topic_id int, next_at timestamptz)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
-- Topics for which messages wait and to which the caller may publish, and when the first of each is to be tried; one look into
-- the index for each topic.
begin
    return query
    with recursive waiting(topic_id) as (
        (select s.topic_id from coordinator.scheduled s order by s.topic_id limit 1)
        union all
        select (select s.topic_id from coordinator.scheduled s where s.topic_id > w.topic_id order by s.topic_id limit 1)
        from waiting w where w.topic_id is not null)
    select w.topic_id, greatest(f.next_at, p.paused_until)
    from waiting w
    cross join lateral (
        select s.next_at from coordinator.scheduled s where s.topic_id = w.topic_id order by s.next_at limit 1) f
    left join coordinator.schedule_pauses p on p.topic_id = w.topic_id
    where not exists (select from coordinator.topics t
                      where t.topic_id = w.topic_id and t.publish_roles is not null and not coordinator.may(t.publish_roles))
    order by w.topic_id;
end
$$;
