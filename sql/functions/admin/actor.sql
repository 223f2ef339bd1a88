create or replace function coordinator.actor() returns text
language sql stable
as $$
    -- The role that acts: who logged in, or whom he has become by SET ROLE. In a definer function current_user is the definer.
    select case when pg_catalog.current_setting('role') = 'none' then session_user::pg_catalog.text
                else pg_catalog.current_setting('role') end
$$;
