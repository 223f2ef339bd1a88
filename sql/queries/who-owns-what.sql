-- Partitions by owner, those of nobody first.
select c."group", c.topic, c.client_id, c.host, c.member_state, array_agg(c.partition order by c.partition) as partitions,
       count(*) filter (where c.moving) as moving, min(c.claimed_at) as since
from coordinator.claim_list c
group by c."group", c.topic, c.member_id, c.client_id, c.host, c.member_state
order by c.client_id is not null, c."group", c.topic, c.client_id;
