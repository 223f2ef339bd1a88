create or replace function coordinator.cancel_scheduled(p_topic text, p_schedule_ids bigint[]) returns bigint[]
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- Takes messages back that wait for their time, with their dedup keys, so that they can be published anew.
-- Returns: which were cancelled; the others are published already, or are being published at this moment.
-- Raises: KG003 no such topic. Locks: scheduled rows FOR UPDATE SKIP LOCKED, then their dedup rows.
declare
    v_topic int;
    v_row coordinator.scheduled;
    v_cancelled bigint[] := '{}';
begin
    select t.topic_id into v_topic from coordinator.topics t where t.name = p_topic;
    if not found then
        raise exception using errcode = 'KG003', message = format('there is no topic %L', p_topic),
            hint = coordinator.topic_hint(p_topic);
    end if;
    for v_row in
        delete from coordinator.scheduled s
        where s.ctid = any (array(select w.ctid from coordinator.scheduled w
                                  where w.topic_id = v_topic and w.schedule_id = any (p_schedule_ids)
                                  order by w.schedule_id
                                  for update skip locked))
        returning s.*
    loop
        v_cancelled := v_cancelled || v_row.schedule_id;
        delete from coordinator.dedup d
        where d.topic_id = v_topic and d.dedup_key = v_row.dedup_key and d.message_id = v_row.message_id;
    end loop;
    return v_cancelled;
end
$$;
