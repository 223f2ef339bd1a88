create or replace function coordinator.place_dedup_keys(
    p_topic_id int,
    p_keys text[],
    p_message_ids uuid[],
    p_partitions int[],
    p_offsets bigint[]
) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
-- Writes the places of published messages to their keys' rows; a null key has none. A row that another message has taken
-- over by now is left alone, and so is one that somebody else has locked: a mover of scheduled messages must wait for nobody.
declare
    v_row record;
begin
    for v_row in
        select u.key, u.id, u.partition, u."offset"
        from unnest(p_keys, p_message_ids, p_partitions, p_offsets) as u(key, id, partition, "offset")
        where u.key is not null
    loop
        perform 1 from coordinator.dedup d
        where d.topic_id = p_topic_id and d.dedup_key = v_row.key and d.message_id = v_row.id
        for no key update skip locked;
        continue when not found;
        update coordinator.dedup d set partition = v_row.partition, "offset" = v_row."offset"
        where d.topic_id = p_topic_id and d.dedup_key = v_row.key;
    end loop;
end
$$;
