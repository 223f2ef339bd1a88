create or replace function coordinator.take_export_turn(p_exporter uuid, p_hold_s double precision) returns boolean
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- Tells whether the caller is the process that exports the gauges of the database; who is stays so as long as it asks again
-- within p_hold_s, and then anybody may be next. Works behind a pooler: nothing is kept in the session.
-- Locks: an advisory lock for this schema, tried only, until the transaction ends; the exporters row.
-- Race: two ask at once when the turn is free. One gets the lock; the other is told no, and asks again.
begin
    if not pg_try_advisory_xact_lock(hashtextextended('coordinator.exporter', 0)) then
        return false;
    end if;
    insert into coordinator.exporters as e (place, exporter, held_until)
    values (1, p_exporter, coordinator.now_() + make_interval(secs => p_hold_s))
    on conflict (place) do update set exporter = excluded.exporter, held_until = excluded.held_until
    where e.exporter = excluded.exporter or e.held_until < coordinator.now_();
    return found;
end
$$;
