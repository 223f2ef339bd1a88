create or replace function coordinator.nearest(p_name text, p_known text[]) returns text
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
-- The name that was meant by one that there is not: the one that shares most of its pairs of letters with it, and at least half.
-- Returns: null where none does.
declare
    v_pairs text[] := array(select substr(' ' || lower(p_name) || ' ', i, 2) from generate_series(1, length(p_name) + 1) i);
begin
    return (
        select k.name
        from unnest(p_known) as k(name)
        cross join lateral (
            select count(*) as shared
            from (select distinct substr(' ' || lower(k.name) || ' ', i, 2) as pair from generate_series(1, length(k.name) + 1) i) as p
            where p.pair = any (v_pairs)) as s
        where 2.0 * s.shared / (length(k.name) + length(p_name) + 2) >= 0.5
        order by 2.0 * s.shared / (length(k.name) + length(p_name) + 2) desc, k.name
        limit 1);
end
$$;
