create or replace function coordinator.segment_table(p_topic coordinator.topics, p_segment int) returns regclass
language plpgsql stable
set search_path = pg_catalog, pg_temp
set quote_all_identifiers = off
as $$
-- The table of a segment; null when it is gone.
begin
    return to_regclass(format('%s_s%s', p_topic.messages, p_segment));
end
$$;
