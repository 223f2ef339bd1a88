create or replace function coordinator.open_segment(p_topic text, p_segment int) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- Second half of a rotation: makes a segment whose table is committed the current one, and writes down the bounds.
-- Returns: false where it was current already.
-- Raises: KG003 no such topic or segment; KG005 its table was made in this transaction: publishers see the segment at
-- once, and would not find the table before the commit, or ever after a rollback.
-- Locks: the topic's rotation lock.
-- Race: a publisher reads the segment, takes offsets, reads it again. Offsets up to the floor were taken before the
-- setval, so their publisher either saw the old segment twice or burnt them; offsets above the ceiling were taken after.
-- setval and not nextval: after a crash a sequence may jump by 32, and the segments between would not exist.
declare
    v_topic coordinator.topics;
    v_current int;
    v_floors bigint[];
    v_ceilings bigint[];
    v_opened boolean := false;
    v_publishers text[];
begin
    select t.* into v_topic from coordinator.topics t where t.name = p_topic;
    if not found then
        raise exception using errcode = 'KG003', message = format('there is no topic %L', p_topic),
            hint = coordinator.topic_hint(p_topic);
    end if;
    perform pg_advisory_xact_lock(hashtextextended('coordinator.rotation/' || v_topic.topic_id, 0));
    -- Again, behind the lock: bounds without those of a partition that was added meanwhile would hide its messages.
    select t.* into v_topic from coordinator.topics t where t.topic_id = v_topic.topic_id;
    perform 1 from coordinator.segments s where s.topic_id = v_topic.topic_id and s.segment = p_segment;
    if not found then
        raise exception using errcode = 'KG003', message = format('topic %L has no segment %s', p_topic, p_segment);
    end if;
    v_current := coalesce(pg_sequence_last_value(v_topic.segment_sequence), 0);
    if v_current < p_segment then
        -- The first segment is made and opened with its topic, which nobody sees before.
        if v_current > 0 and current_setting('pgcoord.made_' || v_topic.messages::oid, true) = p_segment::text then
            raise exception using errcode = 'KG005', message = format(
                'segment %s of topic %L was made in this transaction; commit before it is opened', p_segment, p_topic);
        end if;
        v_floors := array(select coalesce(pg_sequence_last_value(u.s), -1) from unnest(v_topic.offset_sequences) as u(s));
        perform setval(v_topic.segment_sequence, p_segment);
        v_opened := true;
    end if;
    -- A crash between setval and commit leaves bounds that are not known; a later ceiling is a weaker bound, and true.
    v_ceilings := array(select coalesce(pg_sequence_last_value(u.s), -1) from unnest(v_topic.offset_sequences) as u(s));
    -- After setval: whoever may still write into the old segment took its lock before, and is seen here.
    v_publishers := coordinator.open_publishers(v_topic);
    update coordinator.segments s set ceilings = v_ceilings, closed_at = coordinator.now_(), publishers = v_publishers
    where s.topic_id = v_topic.topic_id and s.segment < p_segment and s.ceilings is null;
    update coordinator.segments s set floors = v_floors
    where s.topic_id = v_topic.topic_id and s.segment = p_segment and v_opened;
    return v_opened;
end
$$;
