create or replace function coordinator.add_segment(p_topic text) returns int
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set quote_all_identifiers = off
as $$
-- First half of a rotation: makes the table of the next segment. To be committed before open_segment is called.
-- Returns: its number; the number of one that was made and not yet opened, if there is such.
-- Raises: KG003 no such topic.
-- Locks: one advisory lock per topic; SHARE UPDATE EXCLUSIVE on the topic's table. CREATE TABLE ... PARTITION OF would
-- take ACCESS EXCLUSIVE there and block publishers; a table with a CHECK that proves its place is attached without a scan.
declare
    v_topic coordinator.topics;
    v_segment int;
    v_table text;
begin
    select t.* into v_topic from coordinator.topics t where t.name = p_topic;
    if not found then
        raise exception using errcode = 'KG003', message = format('there is no topic %L', p_topic),
            hint = coordinator.topic_hint(p_topic);
    end if;
    perform pg_advisory_xact_lock(hashtextextended('coordinator.rotation/' || v_topic.topic_id, 0));
    -- Again, behind the lock: it may have been deleted.
    perform 1 from coordinator.topics t where t.topic_id = v_topic.topic_id;
    if not found then
        raise exception using errcode = 'KG003', message = format('there is no topic %L', p_topic),
            hint = coordinator.topic_hint(p_topic);
    end if;
    v_segment := coalesce((select max(s.segment) from coordinator.segments s where s.topic_id = v_topic.topic_id), 0);
    if v_segment > coalesce(pg_sequence_last_value(v_topic.segment_sequence), 0) then
        return v_segment;
    end if;
    v_segment := v_segment + 1;
    v_table := format('%s_s%s', v_topic.messages, v_segment);
    execute format('create table %s (like %s including defaults)', v_table, v_topic.messages);
    execute format('alter table %s add primary key ("partition", "offset")', v_table);
    execute format('alter table %s add check (segment = %s)', v_table, v_segment);
    execute format('alter table %s attach partition %s for values in (%s)', v_topic.messages, v_table, v_segment);
    insert into coordinator.segments (topic_id, segment, created_at) values (v_topic.topic_id, v_segment, coordinator.now_());
    perform set_config('pgcoord.made_' || v_topic.messages::oid, v_segment::text, true);
    return v_segment;
end
$$;
