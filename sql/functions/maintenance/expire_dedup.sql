create or replace function coordinator.expire_dedup(p_limit int default 1000) returns int
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
as $$
-- Deletes up to p_limit dedup keys whose window is over; returns how many. A publisher needs none of this: it takes an
-- expired key over by itself.
-- Locks: the rows, FOR UPDATE SKIP LOCKED; a row that a publisher renews at this moment is left alone.
declare
    -- Read once: a volatile function in the condition would keep the index out.
    v_now timestamptz := coordinator.now_();
    v_count int;
begin
    delete from coordinator.dedup d
    where d.ctid = any (array(select e.ctid from coordinator.dedup e
                              where e.expires_at <= v_now
                              order by e.expires_at limit p_limit
                              for update skip locked));
    get diagnostics v_count = row_count;
    return v_count;
end
$$;
