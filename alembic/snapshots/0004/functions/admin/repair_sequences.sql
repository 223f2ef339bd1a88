create or replace function coordinator.repair_sequences(p_execute boolean default false) returns table (
    sequence text, value bigint, wanted bigint
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set quote_all_identifiers = off
as $$
-- Sequences that are behind their tables, or name a segment that has no table: after a restore that did not carry them, or read
-- them later than the rows. Sets them with p_execute. Publishers and consumers must not run meanwhile.
-- An offset is never handed out again that any message, progress, parked message, dead letter or dedup key has.
-- Returns: what is wrong, the value now (null: never used) and the one it should have.
-- Locks: none. Names come from the catalogue.
declare
    v_topic coordinator.topics;
    v_segment int;
    v_place record;
    v_max bigint;
begin
    for v_topic in select t.* from coordinator.topics t order by t.topic_id loop
        for v_place in
            select u.n::int - 1 as partition, u.s from unnest(v_topic.offset_sequences) with ordinality as u(s, n) order by u.n
        loop
            wanted := greatest(
                (select max(p.hwm) - 1 from coordinator.progress p
                 where p.topic_id = v_topic.topic_id and p.partition = v_place.partition),
                (select max(c.start_offset) - 1 from coordinator.claims c
                 where c.topic_id = v_topic.topic_id and c.partition = v_place.partition),
                (select max(d."offset") from coordinator.dead_letters d
                 where d.topic_id = v_topic.topic_id and d.partition = v_place.partition),
                (select max(r."offset") from coordinator.retries r
                 where r.topic_id = v_topic.topic_id and r.partition = v_place.partition),
                (select max(d."offset") from coordinator.dedup d
                 where d.topic_id = v_topic.topic_id and d.partition = v_place.partition),
                (select max(greatest(s.floors[v_place.partition + 1], s.ceilings[v_place.partition + 1])) from coordinator.segments s
                 where s.topic_id = v_topic.topic_id),
                v_topic.first_offsets[v_place.partition + 1] - 1);
            for v_segment in
                select s.segment from coordinator.segments s
                where s.topic_id = v_topic.topic_id and coordinator.segment_table(v_topic, s.segment) is not null
            loop
                execute format('select max(m."offset") from %s m where m."partition" = $1',
                               coordinator.segment_table(v_topic, v_segment)) into v_max using v_place.partition;
                wanted := greatest(wanted, v_max);
            end loop;
            value := pg_sequence_last_value(v_place.s);
            if wanted >= 0 and coalesce(value, -1) < wanted then
                sequence := v_place.s::text;
                if p_execute then
                    perform setval(v_place.s, wanted);
                end if;
                return next;
            end if;
        end loop;

        select max(s.segment), coalesce(max(s.segment) filter (where s.closed_at is not null), 0) + 1 into wanted, v_max
        from coordinator.segments s
        where s.topic_id = v_topic.topic_id and s.retired_at is null
          and coordinator.segment_table(v_topic, s.segment) is not null;
        value := pg_sequence_last_value(v_topic.segment_sequence);
        if wanted is not null and (value is null or value > wanted or value < least(v_max, wanted)) then
            sequence := v_topic.segment_sequence::text;
            if p_execute then
                perform setval(v_topic.segment_sequence, wanted);
            end if;
            return next;
        end if;
    end loop;

    for v_place in
        select 'coordinator.topic_ids'::regclass as s, 'coordinator.topics'::regclass as tab, 'topic_id' as col
        union all
        select pg_get_serial_sequence(c.oid::regclass::text, a.attname)::regclass, c.oid::regclass, a.attname
        from pg_class c
        join pg_attribute a on a.attrelid = c.oid and a.attidentity <> ''
        where c.relnamespace = (select t.relnamespace from pg_class t where t.oid = 'coordinator.topics'::regclass)
    loop
        execute format('select max(t.%I) from %s t', v_place.col, v_place.tab) into wanted;
        value := pg_sequence_last_value(v_place.s);
        if coalesce(value, 0) < wanted then
            sequence := v_place.s::text;
            if p_execute then
                perform setval(v_place.s, wanted);
            end if;
            return next;
        end if;
    end loop;
end
$$;
