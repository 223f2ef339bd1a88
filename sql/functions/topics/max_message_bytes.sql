create or replace function coordinator.max_message_bytes(p_topic text) returns int
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
-- The largest payload a topic takes, for clients that check before they send; null for an unknown topic.
begin
    return (select t.max_message_bytes from coordinator.topics t where t.name = p_topic);
end
$$;
