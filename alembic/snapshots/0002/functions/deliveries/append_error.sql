create or replace function coordinator.append_error(p_errors jsonb, p_error jsonb) returns jsonb
language sql immutable parallel safe
as $$
    -- The error history of a message: the first and the last four.
    select case when jsonb_array_length(p_errors) >= 5 then (p_errors - 1) || jsonb_build_array(p_error)
                else p_errors || jsonb_build_array(p_error) end
$$;
