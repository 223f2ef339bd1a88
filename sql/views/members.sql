-- Who takes part in which group, and until when it counts as alive without a heartbeat.
create or replace view coordinator.group_members as
select g.name as "group", m.coordinator as member_id, c.client_id, c.host, c.pid,
       case when c.state <> 'dead' and c.lease_until < coordinator.now_() then 'expired' else c.state end as state, c.started_at, m.joined_at, c.lease_until,
       extract(epoch from c.lease_until - coordinator.now_())::double precision as lease_left_s,
       (select array_agg(t.name order by t.name) from coordinator.topics t where t.topic_id = any (m.topic_ids)) as topics,
       (select count(*) from coordinator.claims k where k.group_id = m.group_id and k.owner = m.coordinator) as partitions
from coordinator.members m
join coordinator.groups g on g.group_id = m.group_id
join coordinator.coordinators c on c.coordinator = m.coordinator;
