-- What each group has settled per second in the last ten minutes, from the progress history: the newest row of each
-- partition against the newest one that is ten minutes old, against the group's start, or the oldest row that there is.
create or replace view coordinator.group_rates as
select g.name as "group", t.name as topic, sum(n.settled - b.settled)::bigint as settled,
       round(sum(n.settled - b.settled) / 600, 3)::double precision as settled_per_s
from coordinator.claims c
join coordinator.groups g on g.group_id = c.group_id
join coordinator.topics t on t.topic_id = c.topic_id
join coordinator.group_topics s on s.group_id = c.group_id and s.topic_id = c.topic_id
cross join lateral (
    select p.committed + coordinator.multirange_size(p.done) as settled
    from coordinator.progress p
    where p.group_id = c.group_id and p.topic_id = c.topic_id and p.partition = c.partition
    order by p.seq desc limit 1) n
cross join lateral (
    select coalesce(
        (select p.committed + coordinator.multirange_size(p.done) from coordinator.progress p
         where p.group_id = c.group_id and p.topic_id = c.topic_id and p.partition = c.partition
           and p.at <= coordinator.now_() - interval '10 minutes'
         order by p.seq desc limit 1),
        case when s.created_at > coordinator.now_() - interval '10 minutes' then c.start_offset end,
        (select p.committed + coordinator.multirange_size(p.done) from coordinator.progress p
         where p.group_id = c.group_id and p.topic_id = c.topic_id and p.partition = c.partition
         order by p.seq limit 1)) as settled) b
group by g.name, t.name;
