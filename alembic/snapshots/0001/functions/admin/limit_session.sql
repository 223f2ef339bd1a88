create or replace function coordinator.limit_session(
    p_statement_ms int default 10000,
    p_lock_ms int default 2000,
    p_idle_ms int default 5000
) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
-- Limits of our own transactions, for this transaction alone: no session state, so it works behind a pooler.
-- Pipelined behind BEGIN. What is set locally here outlasts the function, though not the transaction.
begin
    perform set_config('statement_timeout', p_statement_ms::text, true),
            set_config('lock_timeout', p_lock_ms::text, true),
            set_config('idle_in_transaction_session_timeout', p_idle_ms::text, true);
end
$$;
