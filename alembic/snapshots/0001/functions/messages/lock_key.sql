create or replace function coordinator.lock_key(p_topic_id int, p_partition int) returns bigint
language sql immutable parallel safe
as $$
    -- Advisory key under which open publishers of a partition can be seen; partition -1 is the whole topic.
    -- Nothing ever takes it exclusively, so no publisher waits for another. The text holds the schema's name:
    -- the same topic number of another schema in the database must not be taken for this one.
    select hashtextextended('coordinator.topics/' || p_topic_id || '/' || p_partition, 0)
$$;
