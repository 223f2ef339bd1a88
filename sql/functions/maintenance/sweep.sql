create or replace function coordinator.sweep(
    p_limit int default 1000,
    p_every_s double precision default 60,
    out dead_letters int,
    out progress int,
    out coordinators int,
    out deleted_groups text[],
    out pinning text[]
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
-- Deletes what is too old: dead letters beyond max_dead_letter_age_s (counted in groups.dead_letters_dropped), progress rows of
-- more than a quarter of an hour that nobody deletes by the way, processes that are dead for a day, groups that have expired
-- with delete; and what was kept of failures before a seek (forget_failures). Notes since when groups have no members. At most p_limit rows of a kind per call, once in p_every_s.
-- Returns: how many; which groups; pinning: groups without members for a day that keep expired segments, as "group topic".
-- Raises: KG007. Locks: the lock of this task, tried only; groups rows NO KEY UPDATE SKIP LOCKED, their dead letters, progress
-- and coordinators rows SKIP LOCKED; as delete_group.
declare
    v_now timestamptz := coordinator.now_();
    v_group coordinator.groups;
    v_topic coordinator.topics;
    v_expired int;
    v_count int;
begin
    dead_letters := 0;
    progress := 0;
    coordinators := 0;
    deleted_groups := '{}';
    pinning := '{}';
    if not coordinator.begin_task('sweep', p_every_s) then
        return;
    end if;
    for v_group in select g.* from coordinator.groups g order by g.group_id loop
        perform 1 from coordinator.groups g where g.group_id = v_group.group_id for no key update skip locked;
        continue when not found;
        update coordinator.groups g
        set unused_since = case when not exists (select from coordinator.members m where m.group_id = g.group_id) then v_now end
        where g.group_id = v_group.group_id
          and (g.unused_since is null) <> exists (select from coordinator.members m where m.group_id = g.group_id);
        perform coordinator.forget_failures(v_group.group_id, p_limit);
        continue when v_group.max_dead_letter_age_s is null;
        delete from coordinator.dead_letters d
        where d.ctid = any (array(
            select x.ctid from coordinator.dead_letters x
            where x.group_id = v_group.group_id and x.died_at < v_now - make_interval(secs => v_group.max_dead_letter_age_s)
            order by x.died_at limit p_limit
            for update skip locked));
        get diagnostics v_count = row_count;
        continue when v_count = 0;
        update coordinator.groups g set dead_letters_dropped = g.dead_letters_dropped + v_count where g.group_id = v_group.group_id;
        dead_letters := dead_letters + v_count;
    end loop;

    -- Short-lived owners leave some behind: exchanges delete one row each, claim and release one of their own ten seconds.
    delete from coordinator.progress p
    where p.ctid = any (array(
        select x.ctid
        from coordinator.claims c
        cross join lateral (
            select max(n.seq) as seq from coordinator.progress n
            where n.group_id = c.group_id and n.topic_id = c.topic_id and n.partition = c.partition) l
        cross join lateral (
            select o.ctid, o.at from coordinator.progress o
            where o.group_id = c.group_id and o.topic_id = c.topic_id and o.partition = c.partition and o.seq < l.seq
            order by o.seq limit 100) x
        where x.at < v_now - interval '16 minutes'
        limit p_limit));
    get diagnostics progress = row_count;

    delete from coordinator.coordinators c
    where c.ctid = any (array(
        select x.ctid from coordinator.coordinators x
        where x.state = 'dead' and x.died_at < v_now - interval '1 day'
          and not exists (select from coordinator.claims k where k.owner = x.coordinator)
        limit p_limit
        for update skip locked));
    get diagnostics coordinators = row_count;

    for v_group in
        select g.* from coordinator.groups g where coordinator.group_expired(g.group_id) = 'delete' order by g.group_id
    loop
        begin
            perform coordinator.delete_group(v_group.name, p_reason => format('no members since %s', v_group.unused_since));
            deleted_groups := deleted_groups || v_group.name;
        exception when sqlstate 'KG003' or sqlstate 'KG004' then
            continue;
        end;
    end loop;

    for v_topic in
        select t.* from coordinator.topics t
        where (t.retention_s is not null or t.retention_bytes is not null)
          and exists (select from coordinator.group_topics s join coordinator.groups g on g.group_id = s.group_id
                      where s.topic_id = t.topic_id and g.unused_since < v_now - interval '1 day')
        order by t.topic_id
    loop
        v_expired := coordinator.expired_segment(v_topic);
        continue when v_expired is null;
        pinning := pinning || array(
            select distinct g.name || ' ' || v_topic.name
            from coordinator.claims c
            join coordinator.groups g on g.group_id = c.group_id
            join coordinator.segments s on s.topic_id = c.topic_id and s.segment = v_expired
            where c.topic_id = v_topic.topic_id and g.unused_since < v_now - interval '1 day'
              and coordinator.held_offset(c.group_id, c.topic_id, c.partition) <= coalesce(s.ceilings[c.partition + 1], -1)
            order by 1);
    end loop;
    perform coordinator.end_task('sweep');
end
$$;
