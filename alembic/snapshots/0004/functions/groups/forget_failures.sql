create or replace function coordinator.forget_failures(p_group_id int, p_limit int) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
-- Deletes rows of past_failures that no history needs any more: of messages that the log has no more and that are not parked, so
-- that they can't die again (R10); of messages that were settled since, once they are older than the group keeps dead letters;
-- and the oldest beyond the number of dead letters that the group keeps. At most p_limit rows.
-- Locks: past_failures rows SKIP LOCKED.
declare
    v_group coordinator.groups;
    v_count int;
begin
    select g.* into v_group from coordinator.groups g where g.group_id = p_group_id;
    delete from coordinator.past_failures f
    where f.ctid = any (array(
        select x.ctid
        from coordinator.claims c
        cross join lateral (
            select p.committed, coordinator.log_start(c.topic_id, c.partition) as log_start from coordinator.progress p
            where p.group_id = c.group_id and p.topic_id = c.topic_id and p.partition = c.partition
            order by p.seq desc limit 1) l
        join coordinator.past_failures x on x.group_id = c.group_id and x.topic_id = c.topic_id and x.partition = c.partition
        where c.group_id = p_group_id
          and (x."offset" < l.log_start
               or (x."offset" < l.committed
                   and x.at < coordinator.now_() - make_interval(secs => v_group.max_dead_letter_age_s)))
          and not exists (select from coordinator.retries r
                          where r.group_id = x.group_id and r.topic_id = x.topic_id and r.partition = x.partition
                            and r."offset" = x."offset")
        limit p_limit
        for update of x skip locked));
    select count(*) into v_count from (
        select from coordinator.past_failures f where f.group_id = p_group_id limit v_group.max_dead_letters + 1) x;
    if v_count > v_group.max_dead_letters then
        delete from coordinator.past_failures f
        where f.ctid = any (array(
            select x.ctid from coordinator.past_failures x
            where x.group_id = p_group_id
            order by x.at desc, x.topic_id desc, x.partition desc, x."offset" desc
            limit p_limit offset v_group.max_dead_letters
            for update skip locked));
    end if;
end
$$;
