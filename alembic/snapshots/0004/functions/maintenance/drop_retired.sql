create or replace function coordinator.drop_retired(p_grace_s double precision default 10) returns table (
    topic text, segment int, dropped boolean, blocked_by text
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set quote_all_identifiers = off
as $$
-- Drops the table of one retired segment, the oldest of its topic: one per call, so that its locks are held for no longer.
-- p_grace_s: who looked up the segments before it was retired has that long to read it.
-- Returns: a row for the one that was dropped (call again), and one for each that is locked, with who holds it. Raises: KG007.
-- Locks: the lock of this task, tried only; ACCESS EXCLUSIVE on the segment and on the topic's table, both NOWAIT: a DROP that
-- waits for one open publisher makes all others wait behind it. What is always busy is detached instead, see detach_command.
declare
    v_topic coordinator.topics;
    v_retired coordinator.segments;
    v_table regclass;
begin
    if not coordinator.begin_task('drop') then
        return;
    end if;
    for v_retired in
        select distinct on (s.topic_id) s.* from coordinator.segments s
        where s.retired_at is not null
        order by s.topic_id, s.segment
    loop
        continue when v_retired.retired_at > coordinator.now_() - make_interval(secs => p_grace_s);
        select t.* into v_topic from coordinator.topics t where t.topic_id = v_retired.topic_id;
        v_table := coordinator.segment_table(v_topic, v_retired.segment);
        topic := v_topic.name;
        segment := v_retired.segment;
        begin
            if v_table is not null then
                if exists (select from pg_inherits i where i.inhrelid = v_table) then
                    execute format('lock table only %s in access exclusive mode nowait', v_topic.messages);
                end if;
                execute format('lock table only %s in access exclusive mode nowait', v_table);
                execute format('drop table %s', v_table);
            end if;
            delete from coordinator.segments s where s.topic_id = v_retired.topic_id and s.segment = v_retired.segment;
            dropped := true;
            blocked_by := null;
            return next;
            exit;
        exception when lock_not_available then
            blocked_by := coordinator.lock_holders(array[v_topic.messages, v_table]);
            update coordinator.segments s set blocked_by = drop_retired.blocked_by
            where s.topic_id = v_retired.topic_id and s.segment = v_retired.segment
              and s.blocked_by is distinct from drop_retired.blocked_by;
            dropped := false;
            return next;
        end;
    end loop;
    perform coordinator.end_task('drop');
end
$$;
