create or replace function coordinator.raise_dead(p_coordinator uuid) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
-- Tells a coordinator that its right to act is gone, and whether it may come back.
-- Raises: KG012 another process has its static id since, and coming back would throw that one out; else KG002.
begin
    if exists (select from coordinator.coordinators c
               join coordinator.coordinators n on n.static_id = c.static_id and n.started_at > c.started_at
               where c.coordinator = p_coordinator) then
        raise exception using errcode = 'KG012',
            message = format('coordinator %s was replaced by another process with its static id', p_coordinator),
            hint = 'Each process needs a static id of its own. If this is the old one of a restart, it has to end.';
    end if;
    raise exception using errcode = 'KG002', message = format('coordinator %s was declared dead', p_coordinator),
        hint = 'It must drop what it holds and register again under a new id.';
end
$$;
