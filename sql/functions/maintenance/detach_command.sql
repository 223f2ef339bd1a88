create or replace function coordinator.detach_command(p_topic text, p_segment int) returns text
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set quote_all_identifiers = off
as $$
-- The command by which the owner of the tables detaches a retired segment whose topic is never free: no function may run it.
-- It waits for those alone that are open now, and nobody waits behind it. FINALIZE where an earlier one was cut off.
-- Returns: null when there is nothing to detach, or another segment of the topic is being detached.
declare
    v_topic coordinator.topics;
    v_table regclass;
    v_pending boolean;
begin
    select t.* into v_topic from coordinator.topics t
    join coordinator.segments s on s.topic_id = t.topic_id and s.segment = p_segment and s.retired_at is not null
    where t.name = p_topic;
    v_table := coordinator.segment_table(v_topic, p_segment);
    select i.inhdetachpending into v_pending from pg_inherits i where i.inhrelid = v_table;
    if not found or not v_pending and exists (
        select from pg_inherits i where i.inhparent = v_topic.messages and i.inhdetachpending) then
        return null;
    end if;
    return format('alter table %s detach partition %s %s', v_topic.messages, v_table,
                  case when v_pending then 'finalize' else 'concurrently' end);
end
$$;
