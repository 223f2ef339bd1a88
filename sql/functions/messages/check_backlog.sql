create or replace function coordinator.check_backlog(p_topic coordinator.topics, p_count int) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
-- Refuses a publish while the topic's slowest group has max_backlog messages or more to settle.
-- How much room there was is remembered for a second, less what this session has published since, in a setting of the session:
-- a shared row would make publishers wait for each other. Nothing relies on it: when it is lost, or is another client's behind
-- a pooler, the lag is read again. So several sessions together may pass the limit by what they publish in a second.
-- A refusal is remembered by nobody: the first publish after the group has caught up goes through.
-- Raises: KG009. Rule: one batch may be larger than the room left, or it could never pass.
declare
    v_setting text := 'pgcoord.room_' || p_topic.messages::oid;
    -- When it was read, for which limit, and what is left.
    v_known text[] := string_to_array(current_setting(v_setting, true), ' ');
    v_now_s double precision := extract(epoch from coordinator.now_());
    v_room bigint;
    v_lag bigint;
begin
    v_room := v_known[3]::bigint;
    if v_room > 0 and abs(v_now_s - v_known[1]::double precision) < 1 and v_known[2]::bigint = p_topic.max_backlog then
        perform set_config(v_setting, concat_ws(' ', v_known[1], v_known[2], v_room - p_count), false);
        return;
    end if;
    v_lag := coordinator.backlog(p_topic);
    if v_lag >= p_topic.max_backlog then
        raise exception using errcode = 'KG009',
            message = format('topic %L takes no messages: its slowest group has %s to settle, the limit is %s',
                             p_topic.name, v_lag, p_topic.max_backlog),
            hint = 'Try again later, or see which group is behind: coordinator groups list';
    end if;
    perform set_config(v_setting, concat_ws(' ', v_now_s, p_topic.max_backlog, p_topic.max_backlog - v_lag - p_count), false);
end
$$;
