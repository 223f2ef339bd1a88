create or replace function coordinator.session_key(p_coordinator uuid, p_pid int) returns bigint
language sql immutable parallel safe
as $$
    -- Advisory key that a coordinator's session holds while the process lives. The backend's pid is part of it: after a
    -- reconnect the old backend may hold its lock until TCP gives it up, and must neither hide a death nor be in the way.
    select hashtextextended('coordinator.coordinators/' || p_coordinator || '/' || p_pid, 0)
$$;
