-- Messages settled by each group in each of the last ten minutes. For the owner of the schema: it reads the tables.
select g.name as "group", t.name as topic, date_bin('1 minute', s.at, 'epoch') as minute,
       -- From where a seek has put it, from the row before, or from where a group began that is new.
       sum(greatest(s.settled - coalesce(
           (select a.to_offset from coordinator.audit a
            where a.action = 'seek' and a.at > coordinator.now_() - interval '15 minutes' and a.group_id = s.group_id
              and a.topic_id = s.topic_id and a.partition = s.partition and a.epoch > coalesce(s.last_epoch, 0) and a.epoch <= s.epoch
            order by a.epoch desc limit 1),
           s.last_settled,
           case when m.created_at > coordinator.now_() - interval '11 minutes' then c.start_offset else s.settled end), 0))::bigint
       as settled
from (
    select p.group_id, p.topic_id, p.partition, p.at, p.epoch, p.committed + coordinator.multirange_size(p.done) as settled,
           lag(p.epoch) over claim as last_epoch,
           lag(p.committed + coordinator.multirange_size(p.done)) over claim as last_settled
    from coordinator.progress p
    window claim as (partition by p.group_id, p.topic_id, p.partition order by p.seq)) s
join coordinator.claims c on c.group_id = s.group_id and c.topic_id = s.topic_id and c.partition = s.partition
join coordinator.group_topics m on m.group_id = s.group_id and m.topic_id = s.topic_id
join coordinator.groups g on g.group_id = s.group_id
join coordinator.topics t on t.topic_id = s.topic_id
where s.at > coordinator.now_() - interval '11 minutes'
group by 1, 2, 3
order by 1, 2, 3;
