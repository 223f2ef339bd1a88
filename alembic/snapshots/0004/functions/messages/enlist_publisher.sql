create or replace function coordinator.enlist_publisher(p_topic coordinator.topics, p_partitions int[]) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
-- Takes the shared locks that show this transaction as an open publisher of the partitions.
-- Locks: one advisory lock per partition, or one for the topic from the 17th partition of a transaction on, so
-- that a transaction can't exhaust the lock table. What is held is remembered in a transaction-local setting; a
-- rolled-back savepoint undoes the setting and the locks alike.
-- Raises: KG013 the topic was deleted, in this moment, or later than the caller's snapshot.
-- Race: must be called before the first nextval of the call. A publisher whose offset is visible in the sequence
-- and whose lock is not yet taken would be missing from the evidence, and its message would be declared a gap.
-- The inner block is a subtransaction only so that the locks belong to the transaction. Otherwise they belong to the
-- portal that runs the call: a cursor over publish() that fails in a savepoint, after rows of it were fetched before the
-- savepoint, would give up their locks when the savepoint is rolled back, and the messages would be declared gaps.
declare
    v_setting text := 'pgcoord.locks_' || p_topic.messages::oid;
    v_held text := coalesce(current_setting(v_setting, true), '');
    v_new int[];
    v_partition int;
begin
    if v_held = '*' then
        return;
    end if;
    if v_held = '' and cardinality(p_partitions) = 1 then
        v_new := p_partitions;
    else
        v_new := array(select distinct u.p from unnest(p_partitions) as u(p)
                       where not u.p = any (string_to_array(v_held, ',')::int[]) order by u.p);
    end if;
    if cardinality(v_new) = 0 then
        return;
    end if;
    begin
        -- Held to the end of the transaction: what drop_remains takes first, so that it drops nothing of the topic meanwhile.
        perform pg_sequence_last_value(p_topic.segment_sequence);
        if cardinality(v_new) + cardinality(string_to_array(v_held, ',')) > 16 then
            perform pg_advisory_xact_lock_shared(coordinator.lock_key(p_topic.topic_id, -1));
            perform set_config(v_setting, '*', true);
        else
            foreach v_partition in array v_new loop
                perform pg_advisory_xact_lock_shared(coordinator.lock_key(p_topic.topic_id, v_partition));
            end loop;
            perform set_config(v_setting, concat_ws(',', nullif(v_held, ''), array_to_string(v_new, ',')), true);
        end if;
    exception
        -- A block without a handler is no subtransaction.
        when undefined_table or internal_error then
            if pg_table_is_visible(p_topic.messages) is not null then
                raise;
            end if;
            perform coordinator.raise_gone(p_topic.topic_id, p_topic.messages);
    end;
end
$$;
