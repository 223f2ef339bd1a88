create or replace function coordinator.dead_letter_stats(
    p_group text,
    p_topic text default null,
    p_partition int default null,
    p_offset bigint default null,
    p_reason text default null,
    p_error text default null,
    p_key text default null,
    p_since timestamptz default null,
    p_until timestamptz default null
) returns table (
    topic text, reason text, error text, dead_letters bigint, oldest timestamptz, newest timestamptz
)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
-- Why messages died: counts by topic, reason and the first line of the error, the most frequent first. Filters, Raises: as
-- select_dead_letters. Returns: oldest and newest are times of death.
begin
    return query
    select d.topic, d.reason, split_part(d.error, E'\n', 1), count(*), min(d.died_at), max(d.died_at)
    from coordinator.select_dead_letters(
        p_group, p_topic, p_partition, p_offset, p_reason, p_error, p_key, p_since, p_until,
        p_limit => null, p_full => false) d
    group by 1, 2, 3
    order by 4 desc, 1, 2, 3;
end
$$;
