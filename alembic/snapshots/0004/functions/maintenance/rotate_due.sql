create or replace function coordinator.rotate_due(out added int, out opened int, out failed int)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set quote_all_identifiers = off
set lock_timeout = '500ms'
as $$
-- Rotates the topics whose current segment is old or large enough, in two calls: one adds the table, the next one opens it.
-- A segment without messages is not closed, however old. Whoever added a table and died is continued, and so is a rotation
-- whose bounds were lost between setval and commit.
-- Returns: how many segments were added (call again), opened, or could not be; the last are tried again at the next call.
-- Raises: KG007. Locks: the lock of this task, tried only; then as add_segment and open_segment, half a second at most.
declare
    v_topic coordinator.topics;
    v_current coordinator.segments;
    v_segment int;
    v_started timestamptz := clock_timestamp();
begin
    added := 0;
    opened := 0;
    failed := 0;
    if not coordinator.begin_task('rotate') then
        return;
    end if;
    -- In another order each time, and for two seconds: topics that somebody has locked must not hide the others, nor hold up
    -- the caller's heartbeats.
    for v_topic in select t.* from coordinator.topics t order by random() loop
        exit when clock_timestamp() - v_started > interval '2 s';
        begin
            v_segment := pg_sequence_last_value(v_topic.segment_sequence);
            if exists (select from coordinator.segments s where s.topic_id = v_topic.topic_id and s.segment = v_segment + 1) then
                perform coordinator.open_segment(v_topic.name, v_segment + 1);
                opened := opened + 1;
            elsif exists (select from coordinator.segments s
                          where s.topic_id = v_topic.topic_id and s.segment < v_segment and s.ceilings is null) then
                perform coordinator.open_segment(v_topic.name, v_segment);
            else
                select s.* into v_current from coordinator.segments s
                where s.topic_id = v_topic.topic_id and s.segment = v_segment
                  and (s.created_at <= coordinator.now_() - make_interval(secs => coalesce(
                           v_topic.segment_max_age_s,
                           case when v_topic.retention_s is not null then least(greatest(v_topic.retention_s / 8, 60), 86400) end))
                       or pg_total_relation_size(coordinator.segment_table(v_topic, v_segment)) >= v_topic.segment_max_bytes)
                  and (s.floors is null
                       or exists (select from unnest(v_topic.offset_sequences) with ordinality as u(q, n)
                                  where pg_sequence_last_value(u.q) > coalesce(s.floors[u.n], -1)));
                if found then
                    perform coordinator.add_segment(v_topic.name);
                    added := added + 1;
                end if;
            end if;
        exception when lock_not_available then
            failed := failed + 1;
        end;
    end loop;
    if failed = 0 then
        perform coordinator.end_task('rotate');
    end if;
end
$$;
