create or replace function coordinator.protocol_version() returns int
language sql immutable parallel safe
as $$
    -- Compared by clients when they connect; rises when an old client could no longer work with the functions.
    select 4
$$;
