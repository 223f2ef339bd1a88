create or replace function coordinator.end_task(p_task text) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
-- Writes down that a task of maintenance went well; at most every ten seconds, so that a long snapshot does not make the row rot.
declare
    v_now timestamptz := coordinator.now_();
begin
    perform 1 from coordinator.maintenance m
    where m.task = p_task and m.error is null and m.succeeded_at > v_now - interval '10 seconds' and m.succeeded_at <= v_now;
    if not found then
        insert into coordinator.maintenance as m (task, tried_at, succeeded_at) values (p_task, v_now, v_now)
        on conflict on constraint maintenance_pkey do update
            set tried_at = excluded.tried_at, succeeded_at = excluded.succeeded_at, error = null;
    end if;
end
$$;
