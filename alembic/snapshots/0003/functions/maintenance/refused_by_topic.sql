create or replace function coordinator.refused_by_topic(p_state text) returns boolean
language sql immutable parallel safe
as $$
    -- Does an error mean that no message of the topic would pass now? Too far behind, denied, a table that is locked or
    -- missing, a server short of something. Null, no error, means no.
    select coalesce(p_state in ('KG003', 'KG008', 'KG009', '42501', '42P01', '55P03') or p_state like '53%', false)
$$;
