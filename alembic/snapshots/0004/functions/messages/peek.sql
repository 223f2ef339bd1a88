create or replace function coordinator.peek(
    p_topic text,
    p_partition int,
    p_from bigint,
    p_limit int
) returns table (
    "partition" int, "offset" bigint, published_at timestamptz, message_id uuid, key text, headers text, content_type text, payload bytea
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- Up to p_limit visible messages of a partition from an offset on, for people to look at; moves nothing.
-- Raises: KG003 no such topic or partition.
declare
    v_topic coordinator.topics;
    v_from bigint;
    v_high bigint;
    v_left int := p_limit;
    v_row record;
begin
    select t.* into v_topic from coordinator.topics t where t.name = p_topic;
    if not found then
        raise exception using errcode = 'KG003', message = format('there is no topic %L', p_topic),
            hint = coordinator.topic_hint(p_topic);
    end if;
    perform coordinator.check_subscribe(array[v_topic.topic_id]);
    if p_partition < 0 or p_partition >= v_topic.partitions then
        raise exception using errcode = 'KG003', message = format(
            'topic %L has partitions 0 to %s, found %s', p_topic, v_topic.partitions - 1, p_partition);
    end if;
    v_from := greatest(p_from, coordinator.log_start(v_topic.topic_id, p_partition));
    v_high := coordinator.high_offset(v_topic.topic_id, p_partition);
    while v_left > 0 and v_from <= v_high loop
        -- From row to row, not from offset to offset: of what was rolled back, there may be any number between.
        v_from := (select min(f."offset") from coordinator.first_rows(v_topic.topic_id, array[p_partition], array[v_from],
                                                                       array[v_high + 1]) f);
        exit when v_from is null;
        for v_row in
            select r.* from coordinator.read_windows(v_topic.topic_id, array[0], array[p_partition],
                                                     array[v_from], array[least(v_high + 1, v_from + 1000)]) r
        loop
            exit when v_left = 0;
            v_left := v_left - 1;
            return query select p_partition, v_row."offset", v_row.published_at, v_row.message_id, v_row.key,
                                v_row.headers, v_row.content_type, v_row.payload;
        end loop;
        v_from := v_from + 1000;
    end loop;
end
$$;
