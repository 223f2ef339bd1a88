create or replace function coordinator.grant_statements(p_kind text, p_role text) returns setof text
language plpgsql stable
set search_path = pg_catalog, pg_temp
set quote_all_identifiers = off
as $$
-- What gives a role the rights of a kind and takes those from everybody that were never granted to anyone: until somebody does
-- that, whoever may use the schema may call every function in it. Names come from the catalogue.
-- A reader sees every view but for payloads and headers; an operator sees them, too.
-- Raises: KG003 no such role; KG005 no such kind.
declare
    v_schema regnamespace := (select p.pronamespace from pg_proc p where p.oid = 'coordinator.grant_statements(text, text)'::regprocedure);
    v_role regrole;
begin
    if p_kind is null or p_kind not in ('publisher', 'consumer', 'reader', 'operator') then
        raise exception using errcode = 'KG005', message = format(
            'a role is publisher, consumer, reader or operator, found %L', p_kind);
    end if;
    select r.oid into v_role from pg_roles r where r.rolname = p_role;
    if not found then
        raise exception using errcode = 'KG003', message = format('there is no role %L', p_role),
            hint = 'Create it first: create role NAME login';
    end if;
    return next format('revoke execute on all functions in schema %s from public', v_schema);
    return next format('grant usage on schema %s to %s', v_schema, v_role);
    return query
    select format('grant execute on function %s to %s', p.oid::regprocedure, v_role)
    from pg_proc p
    where p.pronamespace = v_schema and p.proname = any (coordinator.rights_of(p_kind))
    order by 1;
    if p_kind in ('reader', 'operator') then
        return query
        select format('grant select (%s) on %s to %s', string_agg(quote_ident(a.attname), ', ' order by a.attnum), c.oid::regclass, v_role)
        from pg_class c
        join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
        where c.relnamespace = v_schema and c.relkind = 'v'
          and (p_kind = 'operator' or a.attname not in ('payload', 'headers'))
        group by c.oid
        order by 1;
    end if;
end
$$;
