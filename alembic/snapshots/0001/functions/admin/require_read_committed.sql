create or replace function coordinator.require_read_committed(p_function text) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
-- Refuses to go on at any other isolation level.
-- Raises: KG007.
-- Why: evidence is read by several statements, each of which must see what committed before it began. At
-- REPEATABLE READ the first of them fixes the snapshot of all, and the proof of a gap loses messages.
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception using
            errcode = 'KG007',
            message = format('%s runs at isolation level %s, it must run at read committed',
                             p_function, current_setting('transaction_isolation')),
            hint = 'Begin the transaction with BEGIN ISOLATION LEVEL READ COMMITTED.';
    end if;
end
$$;
