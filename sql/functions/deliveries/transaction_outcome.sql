create or replace function coordinator.transaction_outcome(p_xid text) returns text
language sql volatile
as $$
    -- committed, aborted or in progress; null when it is too long ago to be known. After a lost answer to a COMMIT.
    select pg_catalog.pg_xact_status(p_xid::pg_catalog.xid8)
$$;
