create or replace function coordinator.end_export_turn(p_exporter uuid) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- The caller exports nothing any more: somebody else may, at once. Locks: the exporters row.
begin
    delete from coordinator.exporters e where e.place = 1 and e.exporter = p_exporter;
end
$$;
