-- Groups with what they read, who takes part, and the sum of their lag.
create or replace view coordinator.group_list as
select g.name,
       coalesce((select array_agg(t.name order by t.name) from coordinator.group_topics s
                 join coordinator.topics t on t.topic_id = s.topic_id where s.group_id = g.group_id), '{}') as topics,
       (select count(*) from coordinator.members m
        join coordinator.coordinators c on c.coordinator = m.coordinator and c.lease_until >= coordinator.now_()
        where m.group_id = g.group_id) as members,
       coalesce((select sum(o.lag)::bigint from coordinator.offsets o where o."group" = g.name), 0) as lag,
       g.created_at,
       (select count(*) from coordinator.offsets o where o."group" = g.name and o.paused) as paused,
       g.unused_since, g.expire_s, g.on_expiry, g.max_dead_letter_age_s
from coordinator.groups g;
