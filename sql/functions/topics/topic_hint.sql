create or replace function coordinator.topic_hint(p_topic text) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
-- What to say to who names a topic that there is not: the one that was meant, else how to make it.
declare
    v_meant text := coordinator.nearest(p_topic, array(select t.name from coordinator.topics t));
begin
    return coalesce('Did you mean ' || v_meant || '? ', '')
        || 'Create it: coordinator topics create NAME --partitions N; those that exist: coordinator topics list';
end
$$;
