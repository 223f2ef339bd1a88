create or replace function coordinator.history() returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- Which history of the database this is: the cluster's own number and its timeline. A standby that is promoted, and a
-- restore to a point in time, begin a new timeline, and may lack the last commits of the old one (R4); a restart does neither.
-- Returns: null where it can't be told: on a standby, or where a managed server keeps these functions to itself.
-- Not from pg_control_checkpoint: that tells the new timeline only after the first checkpoint on it.
begin
    if pg_is_in_recovery() then
        return null;
    end if;
    return (select s.system_identifier::text from pg_control_system() s)
           || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8);
exception
    when feature_not_supported or insufficient_privilege or object_not_in_prerequisite_state or undefined_function then
        return null;
end
$$;
