-- Messages settled by each group in each of the last ten minutes. For the owner of the schema: it reads the tables.
select s."group", s.topic, s.minute, sum(s.settled)::bigint as settled
from (
    select g.name as "group", t.name as topic, date_bin('1 minute', p.at, 'epoch') as minute,
           max(p.committed + coordinator.multirange_size(p.done))
             - lag(max(p.committed + coordinator.multirange_size(p.done)))
               over (partition by g.name, t.name, p.partition order by date_bin('1 minute', p.at, 'epoch')) as settled
    from coordinator.progress p
    join coordinator.groups g on g.group_id = p.group_id
    join coordinator.topics t on t.topic_id = p.topic_id
    group by g.name, t.name, p.partition, 3) s
where s.minute > coordinator.now_() - interval '11 minutes'
group by s."group", s.topic, s.minute
order by s."group", s.topic, s.minute;
