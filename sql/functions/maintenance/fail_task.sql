create or replace function coordinator.fail_task(p_task text, p_error text) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- Writes down that a task of maintenance has failed, and why; in a transaction of its own, after the one that failed.
begin
    insert into coordinator.maintenance as m (task, tried_at, error) values (p_task, coordinator.now_(), left(p_error, 1000))
    on conflict on constraint maintenance_pkey do update set tried_at = excluded.tried_at, error = excluded.error;
end
$$;
