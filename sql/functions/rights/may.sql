create or replace function coordinator.may(p_roles text[]) returns boolean
language sql stable
as $$
    -- Is the caller (actor: not the definer) one of these roles, or a member of one? The owner of the schema may everything, and
    -- so may operators: they say who may.
    select exists (
        select from pg_catalog.pg_roles r
        where (r.rolname = any (p_roles)
               or exists (select from coordinator.role_grants g where g.role = r.rolname and g.kind = 'operator')
               or r.oid = (select n.nspowner from pg_catalog.pg_proc p
                           join pg_catalog.pg_namespace n on n.oid = p.pronamespace
                           where p.oid = 'coordinator.may(text[])'::pg_catalog.regprocedure))
          and pg_catalog.pg_has_role(coordinator.actor()::pg_catalog.name, r.oid, 'member'))
$$;
