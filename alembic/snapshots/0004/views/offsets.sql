-- Where every group stands in every partition. lag is an upper bound: offsets that were rolled back and not yet proven so
-- count as unsettled. No rows of messages are counted.
create or replace view coordinator.offsets as
select g.name as "group", t.name as topic, c.partition, p.committed as current_offset, coordinator.log_start(c.topic_id, c.partition) as log_start_offset,
       v.high + 1 as log_end_offset,
       greatest(v.high + 1 - p.committed - coordinator.multirange_size(p.done), 0) + q.parked as lag,
       greatest(p.hwm - p.committed - coordinator.multirange_size(p.done), 0) as window_open, q.parked,
       c.start_offset, c.epoch, p.seq, p.at as progress_at, c.owner as member_id, o.client_id, o.host,
       case when o.state <> 'dead' and o.lease_until < coordinator.now_() then 'expired' else o.state end as member_state,
       exists (select from coordinator.pauses u
               where u.group_id = c.group_id and u.topic_id = c.topic_id and u.partition = c.partition
                 and (u.expires_at is null or u.expires_at > coordinator.now_())) as paused
from coordinator.claims c
join coordinator.groups g on g.group_id = c.group_id
join coordinator.topics t on t.topic_id = c.topic_id
cross join lateral (
    select r.* from coordinator.progress r
    where r.group_id = c.group_id and r.topic_id = c.topic_id and r.partition = c.partition
    order by r.seq desc limit 1) p
cross join lateral (select coordinator.high_offset(c.topic_id, c.partition) as high) v
cross join lateral (
    select count(*) as parked from coordinator.retries r
    where r.group_id = c.group_id and r.topic_id = c.topic_id and r.partition = c.partition) q
left join coordinator.coordinators o on o.coordinator = c.owner;
