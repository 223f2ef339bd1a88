create or replace function coordinator.fold_acks(p_group int, p_topic int, p_partition int) returns int8multirange
language plpgsql volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
-- At a change of epoch: takes away the acks rows of a claim and the retries rows that they outrank; returns their offsets.
-- Runs of the old epoch can't insert any more: they hold, or wait for, the claim's row, which the caller has locked FOR UPDATE.
declare
    v_offsets bigint[];
begin
    with folded as (
        delete from coordinator.acks a
        where a.group_id = p_group and a.topic_id = p_topic and a.partition = p_partition
        returning a."offset", a.replay
    ), outranked as (
        -- Not the row of a later replay: that one was given back after this settlement, and is still to be handled.
        delete from coordinator.retries r
        using folded f
        where r.group_id = p_group and r.topic_id = p_topic and r.partition = p_partition
          and r."offset" = f."offset" and r.replays = f.replay
    ) select coalesce(array_agg(f."offset"), '{}') into v_offsets from folded f;
    if v_offsets = '{}' then
        return '{}';
    end if;
    return (select range_agg(int8range(u.o, u.o + 1)) from unnest(v_offsets) as u(o));
end
$$;
