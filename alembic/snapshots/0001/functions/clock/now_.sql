create or replace function coordinator.now_() returns timestamptz
language sql volatile parallel safe
as $$
    -- The one clock. Not now(): that is frozen in a transaction that waited for a lock. Tests replace this function.
    select clock_timestamp()
$$;
