-- Partitions that are not where the plan wants them: owned by another (who finishes what it runs), or by nobody yet. Where the one
-- that they are meant for has no lease any more, nobody waits: the next member makes another plan.
create or replace view coordinator.hand_overs as
select g.name as "group", t.name as topic, c.partition, c.owner as member_id, o.client_id,
       a.coordinator as target_member_id, n.client_id as target_client_id,
       extract(epoch from coordinator.now_() - a.assigned_at)::double precision as waiting_s
from coordinator.targets a
join coordinator.claims c on c.group_id = a.group_id and c.topic_id = a.topic_id and c.partition = a.partition
join coordinator.groups g on g.group_id = c.group_id
join coordinator.topics t on t.topic_id = c.topic_id
left join coordinator.coordinators o on o.coordinator = c.owner
join coordinator.coordinators n on n.coordinator = a.coordinator and n.state <> 'dead' and n.lease_until >= coordinator.now_()
where c.owner is distinct from a.coordinator;
