-- What each group has settled per second in the last ten minutes, from the progress history: the newest row of each
-- partition against where its newest seek has put it, the newest row that is ten minutes old, the group's start, or the oldest
-- row that there is. What retention or somebody has skipped since then was not settled.
create or replace view coordinator.group_rates as
select g.name as "group", t.name as topic, sum(greatest(n.settled - b.settled - k.skipped, 0))::bigint as settled,
       round(sum(greatest(n.settled - b.settled - k.skipped, 0)) / 600, 3)::double precision as settled_per_s
from coordinator.claims c
join coordinator.groups g on g.group_id = c.group_id
join coordinator.topics t on t.topic_id = c.topic_id
join coordinator.group_topics s on s.group_id = c.group_id and s.topic_id = c.topic_id
left join (
    select distinct on (a.group_id, a.topic_id, a.partition) a.group_id, a.topic_id, a.partition, a.to_offset, a.at
    from coordinator.audit a
    where a.action = 'seek' and a.at > coordinator.now_() - interval '10 minutes'
    order by a.group_id, a.topic_id, a.partition, a.audit_id desc
) f on f.group_id = c.group_id and f.topic_id = c.topic_id and f.partition = c.partition
cross join lateral (
    select p.committed + coordinator.multirange_size(p.done) as settled
    from coordinator.progress p
    where p.group_id = c.group_id and p.topic_id = c.topic_id and p.partition = c.partition
    order by p.seq desc limit 1) n
cross join lateral (
    select coalesce(
        f.to_offset,
        (select p.committed + coordinator.multirange_size(p.done) from coordinator.progress p
         where p.group_id = c.group_id and p.topic_id = c.topic_id and p.partition = c.partition
           and p.at <= coordinator.now_() - interval '10 minutes'
         order by p.seq desc limit 1),
        case when s.created_at > coordinator.now_() - interval '10 minutes' then c.start_offset end,
        (select p.committed + coordinator.multirange_size(p.done) from coordinator.progress p
         where p.group_id = c.group_id and p.topic_id = c.topic_id and p.partition = c.partition
         order by p.seq limit 1)) as settled) b
cross join lateral (
    select coalesce(sum(coordinator.multirange_size(s.offsets)), 0) as skipped
    from coordinator.skips s
    where s.group_id = c.group_id and s.topic_id = c.topic_id and s.partition = c.partition and s.reason <> 'seek'
      and s.at > coalesce(f.at, coordinator.now_() - interval '10 minutes')) k
group by g.name, t.name;
