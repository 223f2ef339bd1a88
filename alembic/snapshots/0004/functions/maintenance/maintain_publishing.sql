create or replace function coordinator.maintain_publishing(
    p_limit int default 1000,
    out moved int,
    out failed int,
    out expired int,
    out next_s double precision
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- What publishing needs to be done now and then, by any process, one at a time: moves what is due, deletes expired keys.
-- Returns: what was done; in how many seconds to come again, at most 1, because something may be scheduled meanwhile.
-- Raises: KG007. Locks: one advisory lock for this schema, tried only; who does not get it has nothing to do.
begin
    moved := 0;
    failed := 0;
    expired := 0;
    next_s := 1;
    if not pg_try_advisory_xact_lock(hashtextextended('coordinator.maintenance/publishing', 0)) then
        return;
    end if;
    select m.moved, m.failed, least(m.next_s, 1) into moved, failed, next_s from coordinator.move_due(p_limit) m;
    expired := coordinator.expire_dedup(p_limit);
    if expired >= p_limit then
        next_s := 0;
    end if;
    perform coordinator.end_task('publishing');
end
$$;
