create or replace function coordinator.decode_json(p_payload bytea) returns jsonb
language plpgsql immutable parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
-- A payload as JSON; null where it is none, or holds what jsonb can't, such as \u0000.
begin
    return convert_from(p_payload, 'UTF8')::jsonb;
-- statement_too_complex: nested deeper than the server's stack.
exception when data_exception or statement_too_complex then
    return null;
end
$$;
