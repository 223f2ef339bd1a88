create or replace function coordinator.high_offset(p_topic_id int, p_partition int) returns bigint
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- V, the highest offset handed out in a partition; -1 where none was.
-- Definer: without a right on the sequence pg_sequence_last_value says null, which would read as "empty".
-- Raises: KG013 the topic was deleted later than the caller's snapshot.
declare
    v_messages regclass;
    v_sequence regclass;
begin
    select t.messages, t.offset_sequences[p_partition + 1] into v_messages, v_sequence
    from coordinator.topics t where t.topic_id = p_topic_id;
    return coalesce(pg_sequence_last_value(v_sequence), -1);
exception when undefined_table or internal_error then
    if pg_table_is_visible(v_messages) is not null then
        raise;
    end if;
    perform coordinator.raise_gone(p_topic_id, v_messages);
    return null;
end
$$;
