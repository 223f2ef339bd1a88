create or replace function coordinator.move_due(
    p_limit int default 1000,
    out moved int,
    out failed int,
    out next_s double precision
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '500ms'
as $$
-- Publishes scheduled messages that are due, up to p_limit, each topic's in the order of their times.
-- Each topic gets an equal share of the limit, so that one with many is not in the way of the others (R14).
-- Returns: how many were moved and how many failed; in how many seconds the next is due, null if none waits.
-- Raises: KG007. What goes wrong with a topic or a message is kept with it and tried again later.
-- Locks: the rows, FOR UPDATE SKIP LOCKED: two movers at once move each row once. Topics in the order of their numbers.
-- Race: a mover that dies before COMMIT has moved nothing; publish and delete are one transaction.
declare
    v_now timestamptz := coordinator.now_();
    v_started timestamptz := clock_timestamp();
    v_due int[];
    v_topic_id int;
    v_result record;
begin
    perform coordinator.require_read_committed('move_due');
    moved := 0;
    failed := 0;
    v_due := array(select t.topic_id from coordinator.scheduled_topics() t where t.next_at <= v_now order by t.topic_id);
    v_due := v_due[1 : greatest(p_limit, 1)];
    foreach v_topic_id in array v_due loop
        -- Work, not time of messages: what was done must be committed before the statement's limit undoes all of it.
        exit when clock_timestamp() - v_started > interval '2 s';
        v_result := coordinator.move_due_of(v_topic_id, greatest(p_limit / cardinality(v_due), 1), v_now);
        moved := moved + v_result.moved;
        failed := failed + v_result.failed;
    end loop;
    next_s := (select extract(epoch from min(t.next_at) - coordinator.now_()) from coordinator.scheduled_topics() t);
    -- What is due and was not moved is locked by another mover: no reason to ask again at once.
    if next_s is not null then
        next_s := greatest(next_s, case when moved + failed > 0 then 0 else 0.1 end);
    end if;
end
$$;
