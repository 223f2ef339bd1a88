create or replace function coordinator.move_due_of(
    p_topic_id int,
    p_limit int,
    p_now timestamptz,
    out moved int,
    out failed int
)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
-- One topic's part of move_due: all in one publish; if that fails, message by message, each in a subtransaction of its own.
-- A message that fails is tried again after 1 s, doubled up to 300 s. Where the topic itself refuses, it is paused as a whole,
-- for 1 s doubled up to 10 s: its messages are due as soon as it takes them again.
declare
    v_topic coordinator.topics;
    v_ids bigint[];
    v_id bigint;
    v_state text;
    v_error text;
begin
    moved := 0;
    failed := 0;
    select t.* into v_topic from coordinator.topics t where t.topic_id = p_topic_id;
    -- Up to some 16 MiB a publish; the first may be as large as it is.
    with locked as (
        select s.schedule_id, s.next_at, octet_length(s.payload) as bytes from coordinator.scheduled s
        where s.topic_id = p_topic_id and s.next_at <= p_now
        order by s.next_at, s.schedule_id limit p_limit
        for update skip locked)
    select array_agg(w.schedule_id order by w.next_at, w.schedule_id) into v_ids
    from (select l.*, sum(l.bytes) over (order by l.next_at, l.schedule_id) - l.bytes as bytes_before from locked l) w
    where w.bytes_before < 16777216;
    if v_ids is null then
        return;
    end if;
    begin
        perform coordinator.move_scheduled(v_topic, v_ids);
        moved := cardinality(v_ids);
    exception when others then
        get stacked diagnostics v_state = returned_sqlstate, v_error = message_text;
    end;
    foreach v_id in array case when moved = 0 and not coordinator.refused_by_topic(v_state) then v_ids else '{}' end loop
        begin
            perform coordinator.move_scheduled(v_topic, array[v_id]);
            moved := moved + 1;
        exception when others then
            get stacked diagnostics v_state = returned_sqlstate, v_error = message_text;
            exit when coordinator.refused_by_topic(v_state);
            failed := failed + 1;
            update coordinator.scheduled s
            set attempts = s.attempts + 1, last_error = left(v_state || ': ' || v_error, 1000),
                next_at = coordinator.now_() + make_interval(secs => least(power(2, least(s.attempts, 20)), 300))
            where s.schedule_id = v_id;
        end;
    end loop;
    if coordinator.refused_by_topic(v_state) then
        failed := failed + 1;
        insert into coordinator.schedule_pauses as p (topic_id, paused_until, attempts, last_error)
        values (p_topic_id, coordinator.now_() + interval '1 s', 1, left(v_state || ': ' || v_error, 1000))
        on conflict (topic_id) do update
        set paused_until = coordinator.now_() + make_interval(secs => least(power(2, least(p.attempts, 20)), 10)),
            attempts = p.attempts + 1, last_error = excluded.last_error;
    elsif moved > 0 then
        delete from coordinator.schedule_pauses p where p.topic_id = p_topic_id;
    end if;
end
$$;
