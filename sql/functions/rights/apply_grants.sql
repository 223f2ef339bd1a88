create or replace function coordinator.apply_grants(p_kind text default null, p_role text default null) returns setof text
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
-- Grants a role the rights of a kind, and remembers it; with nulls grants anew what is remembered, which an upgrade does: it has
-- made functions that everybody may call, and dropped others with their grants. A role that is gone is passed over.
-- Not a definer function: only the owner of the schema can. Returns: the statements that were run. Raises: as grant_statements.
-- Locks: advisory, of this function. Two that change the rights of one function at once fail ("tuple concurrently updated").
declare
    v_grant record;
    v_statement text;
begin
    perform pg_advisory_xact_lock(hashtextextended('coordinator.grants', 0));
    if p_kind is not null then
        perform coordinator.grant_statements(p_kind, p_role);
        insert into coordinator.role_grants (role, kind) values (p_role, p_kind) on conflict do nothing;
    end if;
    for v_grant in
        select g.role, g.kind from coordinator.role_grants g
        where exists (select from pg_roles r where r.rolname = g.role) and (p_kind is null or g.role = p_role and g.kind = p_kind)
        order by g.role, g.kind
    loop
        for v_statement in select s from coordinator.grant_statements(v_grant.kind, v_grant.role) as s loop
            execute v_statement;
            return next v_statement;
        end loop;
    end loop;
end
$$;
