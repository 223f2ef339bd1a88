-- Who owns each partition of each group, and who should.
create or replace view coordinator.claim_list as
select g.name as "group", t.name as topic, c.partition, c.owner as member_id, o.client_id, o.host,
       case when o.state <> 'dead' and o.lease_until < coordinator.now_() then 'expired' else o.state end as member_state,
       c.epoch, c.claimed_at, c.start_offset, w.coordinator as target_member_id, w.coordinator is distinct from c.owner as moving
from coordinator.claims c
join coordinator.groups g on g.group_id = c.group_id
join coordinator.topics t on t.topic_id = c.topic_id
left join coordinator.coordinators o on o.coordinator = c.owner
left join coordinator.targets w on w.group_id = c.group_id and w.topic_id = c.topic_id and w.partition = c.partition;
