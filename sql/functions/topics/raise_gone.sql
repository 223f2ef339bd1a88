create or replace function coordinator.raise_gone(p_topic_id int, p_messages regclass) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
-- Says why a table or sequence of a topic is not there, which the caller's snapshot, or a moment ago a row, said is.
-- Always raises: KG013 the topic was deleted; KG014 it is there, and retention has dropped what the snapshot is old enough to see.
-- pg_table_is_visible sees what is there now, whatever the snapshot; null: nothing.
declare
    v_name text := coalesce((select quote_literal(t.name) from coordinator.topics t where t.topic_id = p_topic_id),
                            'number ' || p_topic_id);
begin
    if pg_table_is_visible(p_messages) is null then
        raise exception using errcode = 'KG013', message = format('topic %s was deleted', v_name),
            hint = 'This transaction began before; a new one finds no such topic.';
    end if;
    raise exception using errcode = 'KG014',
        message = format('messages of topic %s that this transaction still sees were dropped by retention', v_name),
        hint = 'Begin a new transaction, at READ COMMITTED.';
end
$$;
