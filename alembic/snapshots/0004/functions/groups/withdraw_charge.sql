create or replace function coordinator.withdraw_charge(p_coordinator uuid) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- A coordinator that was declared dead turns out to be alive: nothing of its had crashed. What was charged may start at once, but
-- for what has failed since: that keeps its own pause.
begin
    delete from coordinator.crashes x where x.coordinator = p_coordinator;
    update coordinator.retries r
    set crashes = greatest(r.crashes - 1, 0), crashed_by = null, alone = false, crash_next_at = null,
        next_at = case when r.next_at = r.crash_next_at then least(r.next_at, coordinator.now_()) else r.next_at end
    where r.crashed_by = p_coordinator;
end
$$;
