create or replace function coordinator.ack(
    p_coordinator uuid,
    p_group int,
    p_topic int,
    p_partition int,
    p_epoch bigint,
    p_offsets bigint[],
    p_replays int[]
) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
-- Acks messages in the caller's, that is the handler's, transaction: its effects and the ack are committed together, or neither.
-- To be called last: what is locked here is locked until the commit. The plans are pinned to the keys, see settle_hard.
-- Returns: pg_current_xact_id(), by which an unknown outcome of the commit is found out.
-- Raises: KG001 the claim has another owner or epoch; KG011 a message was settled by another run. The transaction can't go on.
-- Locks: the claim's row FOR KEY SHARE, which lets the owner's exchanges go on and makes a takeover (FOR UPDATE) wait.
-- Race: two runs of one message, or a zombie and its successor, insert the same acks row; the second waits and is refused. The
-- row stays as long as a run of the message may be alive in this epoch; an older epoch is refused by the claim.
declare
    v_claim record;
    v_count int;
begin
    perform coordinator.check_subscribe(array[p_topic]);
    select c.owner, c.epoch into v_claim from coordinator.claims c
    where c.group_id = p_group and c.topic_id = p_topic and c.partition = p_partition
      and c.owner = p_coordinator and c.epoch = p_epoch
    for key share;
    if not found then
        select c.owner, c.epoch into v_claim from coordinator.claims c
        where c.group_id = p_group and c.topic_id = p_topic and c.partition = p_partition;
        raise exception using errcode = 'KG001',
            message = format('epoch %s of this partition is over: it is at %s', p_epoch, coalesce(v_claim.epoch::text, 'none')),
            detail = jsonb_build_object('held', p_epoch, 'current', v_claim.epoch)::text;
    end if;
    -- Only the COMMIT is to come. A client that is frozen now must not keep a takeover from the claim's row for as long as its
    -- handler might have run.
    perform set_config('idle_in_transaction_session_timeout', '5s', true);
    insert into coordinator.acks (group_id, topic_id, partition, "offset", replay, epoch)
    select p_group, p_topic, p_partition, u.o, u.r, p_epoch from unnest(p_offsets, p_replays) as u(o, r) order by u.o
    on conflict on constraint acks_pkey do nothing;
    get diagnostics v_count = row_count;
    if v_count <> cardinality(p_offsets) then
        raise exception using errcode = 'KG011',
            message = 'another run of this message was first: it is settled already, and this run is to be rolled back';
    end if;
    -- A run that overran its deadline: its message is parked, and the row must go with this ack (R15).
    delete from coordinator.retries r
    where r.group_id = p_group and r.topic_id = p_topic and r.partition = p_partition and r."offset" = any (p_offsets);
    return pg_current_xact_id()::text;
end
$$;
