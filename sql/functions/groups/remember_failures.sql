create or replace function coordinator.remember_failures(
    p_group int,
    p_topic int,
    p_partition int,
    p_offset bigint,
    p_errors jsonb,
    p_now timestamptz
) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
-- Keeps how a message had failed, when a seek gives it back: bury joins it to the history of what dies again.
begin
    if p_errors = '[]' then
        return;
    end if;
    insert into coordinator.past_failures as f (group_id, topic_id, partition, "offset", errors, at)
    values (p_group, p_topic, p_partition, p_offset, p_errors, p_now)
    on conflict on constraint past_failures_pkey do update
        set errors = coordinator.join_errors(f.errors, excluded.errors), at = excluded.at;
end
$$;
