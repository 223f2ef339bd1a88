create or replace function coordinator.multirange_size(p_ranges int8multirange) returns bigint
language sql immutable strict parallel safe
as $$
    -- How many offsets a multirange holds.
    select coalesce(sum(upper(u.r) - lower(u.r)), 0)::bigint from unnest(p_ranges) as u(r)
$$;
