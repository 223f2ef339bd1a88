create or replace function coordinator.settle_hard(
    p_groups int[],
    p_topics int[],
    p_partitions int[],
    p_epochs bigint[],
    p_owned int[],
    p_entries jsonb
) returns table (ord int, done int8multirange, refused bigint, refusal text)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
-- The part of an exchange that is not an ack: retries, dead letters, parking, and what follows from settling a parked message.
-- Only for entries of claims in p_owned, which exchange has locked and checked. p_entries, in order, each with o (ord), k and:
--   retry   offset, key, delay_s, error, running, replays: a retries row with one failure more; running keeps it handed out
--   behind  key, offsets (array): parked until the message ahead of them is settled
--   dead    offset, key, reason, error, attempts, replays, guard: a dead letter; guard: transactional runs of it may be alive
--   clear   offset, key: a parked message was acked; its row goes, and what waits behind its key is handed out
--   empty   before alone, for every claim: what was handed out of the parked is not; the window ends at committed
--   alone   offset, key, replays: it is parked, if it is not yet, and handed out, and nothing else is
--   fold    offsets (array): acks rows of which no run is alive any more
--   charged: crash rows that lie wholly below committed
-- replays: of the message, as its acks row says it: the retries row, which would tell, goes with the ack of a run that overran.
-- The plans are pinned to the keys: to statistics a table of which an old snapshot keeps what is gone is a few rows in many pages,
-- and reading all of those for each message looks cheaper than its index.
-- Returns: per claim what becomes done, and offsets that could not be dead-lettered, with the last reason why.
-- Race: with guard the acks row is inserted first. If a transactional run has inserted it, this waits for its outcome; if that
-- committed, the message is acked and no dead letter is written.
declare
    v_now timestamptz := coordinator.now_();
    v_entry record;
    v_group int;
    v_topic int;
    v_partition int;
    v_epoch bigint;
    v_wake_ords int[] := '{}';
    v_wake_keys text[] := '{}';
begin
    for v_entry in
        select (e.j ->> 'o')::int as ord, e.j ->> 'k' as kind, (e.j ->> 'offset')::bigint as "offset", e.j ->> 'key' as key, e.j
        from jsonb_array_elements(p_entries) with ordinality as e(j, n)
        where (e.j ->> 'o')::int = any (p_owned)
        order by e.n
    loop
        ord := v_entry.ord;
        done := '{}';
        refused := null;
        refusal := null;
        v_group := p_groups[ord];
        v_topic := p_topics[ord];
        v_partition := p_partitions[ord];
        v_epoch := p_epochs[ord];
        if v_entry.kind = 'retry' then
            insert into coordinator.retries as r (group_id, topic_id, partition, "offset", key, fails, crashes, next_at,
                                                  dispatched_epoch, replays, errors, created_at)
            values (v_group, v_topic, v_partition, v_entry."offset", v_entry.key, 1,
                    (select count(*) from coordinator.crashes c
                     where c.group_id = v_group and c.topic_id = v_topic and c.partition = v_partition
                       and c.offsets @> v_entry."offset"),
                    v_now + make_interval(secs => (v_entry.j ->> 'delay_s')::double precision),
                    case when (v_entry.j ->> 'running')::boolean then v_epoch end,
                    coalesce((v_entry.j ->> 'replays')::int, 0),
                    jsonb_build_array(v_entry.j -> 'error'), v_now)
            on conflict on constraint retries_pkey do update
                -- Who was declared dead and goes on, because nobody has taken over yet, must not undo the pause behind his crash.
                set fails = r.fails + 1, next_at = greatest(excluded.next_at, r.crash_next_at), crash_next_at = null,
                    dispatched_epoch = excluded.dispatched_epoch,
                    behind_key = false,
                    errors = coordinator.append_error(r.errors, v_entry.j -> 'error');
            done := int8multirange(int8range(v_entry."offset", v_entry."offset" + 1));
        elsif v_entry.kind = 'behind' then
            insert into coordinator.retries (group_id, topic_id, partition, "offset", key, fails, crashes, next_at, behind_key,
                                             created_at)
            select v_group, v_topic, v_partition, u.o, v_entry.key, 0,
                   (select count(*) from coordinator.crashes c
                    where c.group_id = v_group and c.topic_id = v_topic and c.partition = v_partition and c.offsets @> u.o),
                   v_now, true, v_now
            from jsonb_array_elements_text(v_entry.j -> 'offsets') as t(x)
            cross join lateral (select t.x::bigint as o) u
            on conflict on constraint retries_pkey do nothing;
            select range_agg(int8range(t.x::bigint, t.x::bigint + 1)) into done
            from jsonb_array_elements_text(v_entry.j -> 'offsets') as t(x);
            -- The message ahead may have been settled by a late ack meanwhile: then nobody else would wake these.
            if not exists (select from coordinator.retries r
                           where r.group_id = v_group and r.topic_id = v_topic and r.partition = v_partition
                             and r.key = v_entry.key and not r.behind_key and r."offset" < lower(done)) then
                v_wake_ords := v_wake_ords || ord;
                v_wake_keys := v_wake_keys || v_entry.key;
            end if;
        elsif v_entry.kind = 'alone' then
            -- The claim's windows are emptied, so that a crash now can be charged to one message only.
            insert into coordinator.retries as r (group_id, topic_id, partition, "offset", key, fails, crashes, next_at,
                                                  dispatched_epoch, replays, created_at)
            select v_group, v_topic, v_partition, v_entry."offset", v_entry.key, 0, count(*), v_now, v_epoch,
                   coalesce((v_entry.j ->> 'replays')::int, 0), v_now
            from coordinator.crashes c
            where c.group_id = v_group and c.topic_id = v_topic and c.partition = v_partition and c.offsets @> v_entry."offset"
            on conflict on constraint retries_pkey do update set dispatched_epoch = v_epoch, behind_key = false;
            done := int8multirange(int8range(v_entry."offset", v_entry."offset" + 1));
        elsif v_entry.kind = 'empty' then
            update coordinator.retries r set dispatched_epoch = null
            where r.group_id = v_group and r.topic_id = v_topic and r.partition = v_partition
              and r.dispatched_epoch is not null;
        elsif v_entry.kind = 'dead' then
            begin
                perform coordinator.bury(v_group, v_topic, v_partition, v_epoch, v_entry."offset", v_entry.j, v_now);
                done := int8multirange(int8range(v_entry."offset", v_entry."offset" + 1));
                v_wake_ords := v_wake_ords || ord;
                v_wake_keys := v_wake_keys || v_entry.key;
            exception when others then
                refused := v_entry."offset";
                refusal := sqlerrm;
            end;
        elsif v_entry.kind = 'clear' then
            delete from coordinator.retries r
            where r.group_id = v_group and r.topic_id = v_topic and r.partition = v_partition
              and r."offset" = v_entry."offset";
            v_wake_ords := v_wake_ords || ord;
            v_wake_keys := v_wake_keys || v_entry.key;
        elsif v_entry.kind = 'fold' then
            -- An array, as in wake_behind: a join would read all of the claim's rows, also those that are gone and that somebody's
            -- old snapshot keeps.
            delete from coordinator.acks a
            where a.group_id = v_group and a.topic_id = v_topic and a.partition = v_partition
              and a."offset" = any (array(select t.x::bigint from jsonb_array_elements_text(v_entry.j -> 'offsets') as t(x)));
        elsif v_entry.kind = 'charged' then
            delete from coordinator.crashes c
            where c.group_id = v_group and c.topic_id = v_topic and c.partition = v_partition
              and upper(c.offsets) <= (v_entry.j ->> 'committed')::bigint;
        else
            raise exception using errcode = 'KG005', message = format('unknown kind of entry %L', v_entry.kind);
        end if;
        return next;
    end loop;
    -- Once per key, whatever was settled of it: each look passes over all that this transaction has woken before.
    for v_entry in
        select distinct u.ord, u.key from unnest(v_wake_ords, v_wake_keys) as u(ord, key)
        where u.key is not null
        order by u.ord, u.key
    loop
        perform coordinator.wake_behind(p_groups[v_entry.ord], p_topics[v_entry.ord], p_partitions[v_entry.ord],
                                        p_epochs[v_entry.ord], v_entry.key, v_now);
    end loop;
end
$$;
