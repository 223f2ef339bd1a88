create or replace function coordinator.record(
    p_action text,
    p_group text,
    p_group_id int,
    p_topic text,
    p_topic_id int,
    p_partition int default null,
    p_from bigint default null,
    p_to bigint default null,
    p_epoch bigint default null,
    p_reason text default null,
    p_detail jsonb default '{}'
) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
-- Writes one row of the audit: who is who logged in, or whom he has become by SET ROLE; the definer says nothing.
begin
    insert into coordinator.audit (at, actor, application, action, "group", group_id, topic, topic_id, partition, from_offset,
                                   to_offset, epoch, reason, detail)
    values (coordinator.now_(), coordinator.actor(), current_setting('application_name'), p_action, p_group, p_group_id, p_topic,
            p_topic_id, p_partition, p_from, p_to, p_epoch, p_reason, p_detail);
end
$$;
