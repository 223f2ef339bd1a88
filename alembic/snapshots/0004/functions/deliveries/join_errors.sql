create or replace function coordinator.join_errors(p_before jsonb, p_after jsonb) returns jsonb
language sql immutable parallel safe
as $$
    -- Two error histories, one behind the other, shortened as append_error does: the first, and the last four.
    select case when jsonb_array_length(p_before || p_after) <= 5 then p_before || p_after
                else jsonb_build_array((p_before || p_after) -> 0)
                     || jsonb_path_query_array(p_before || p_after, '$[last - 3 to last]') end
$$;
