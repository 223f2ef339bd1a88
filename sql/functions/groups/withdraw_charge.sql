create or replace function coordinator.withdraw_charge(p_coordinator uuid) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- A coordinator that was declared dead turns out to be alive: nothing of its had crashed. The pause before the next start of
-- what was charged stays: the row does not tell whether it is that of the crash or of a failure since, which must keep its own.
begin
    delete from coordinator.crashes x where x.coordinator = p_coordinator;
    update coordinator.retries r set crashes = greatest(r.crashes - 1, 0), crashed_by = null, alone = false
    where r.crashed_by = p_coordinator;
end
$$;
