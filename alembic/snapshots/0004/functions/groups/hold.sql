create or replace function coordinator.hold(
    p_group text,
    p_topic text default null,
    p_partitions int[] default null,
    p_hold_s double precision default 30
) returns int
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- First step of what waits for claims' rows (seek, skip, delete_group): a pause that ends with it, or by itself after p_hold_s.
-- To be committed before. Returns: how many claims. Raises: as pause; KG005 a hold of more than ten minutes.
-- Why: transactional acks hold a claim's row FOR KEY SHARE, one beginning before the other has ended. FOR UPDATE waits for all
-- of them, lets new ones pass, and never comes to its turn; each single wait is short, so lock_timeout does not fire (R9).
declare
    v_group int := coordinator.group_id_of(p_group);
    v_count int;
begin
    if p_hold_s is null or p_hold_s not between 0 and 600 then
        raise exception using errcode = 'KG005', message = format('a hold lasts 0 to 600 seconds, found %s', p_hold_s);
    end if;
    insert into coordinator.pauses (group_id, topic_id, partition, kind, paused_by, paused_at, expires_at)
    select v_group, c.topic_id, c."partition", 'hold', coordinator.actor(), coordinator.now_(),
           coordinator.now_() + make_interval(secs => p_hold_s)
    from coordinator.claims_named(v_group, p_group, p_topic, p_partitions) c
    order by c.topic_id, c."partition"
    on conflict on constraint pauses_pkey do update set expires_at = excluded.expires_at;
    get diagnostics v_count = row_count;
    perform pg_notify('coordinator.groups', '');
    return v_count;
end
$$;
