create or replace function coordinator.check_retention(
    p_retention_s double precision,
    p_retention_bytes bigint,
    p_unconsumed text,
    p_segment_max_age_s double precision,
    p_segment_max_bytes bigint
) returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
-- Raises: KG005 for a value that no topic can have. Not between is true of NaN, too.
begin
    if p_retention_s not between 1 and 3.2e9 or p_segment_max_age_s not between 1 and 3.2e9 then
        raise exception using errcode = 'KG005', message = format(
            'retention_s and segment_max_age_s are between 1 and 3.2e9, or null, found %s and %s',
            coalesce(p_retention_s::text, 'null'), coalesce(p_segment_max_age_s::text, 'null'));
    end if;
    if p_retention_bytes < 1 or p_segment_max_bytes < 8192 then
        raise exception using errcode = 'KG005', message = format(
            'retention_bytes is 1 or more, segment_max_bytes 8192 or more, or null, found %s and %s',
            coalesce(p_retention_bytes::text, 'null'), coalesce(p_segment_max_bytes::text, 'null'));
    end if;
    if p_unconsumed is null or p_unconsumed not in ('keep', 'drop') then
        raise exception using errcode = 'KG005', message = format('unconsumed is keep or drop, found %L', p_unconsumed);
    end if;
end
$$;
