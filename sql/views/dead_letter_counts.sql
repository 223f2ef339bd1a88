-- How many messages of each partition a group gave up on; partitions without any are not listed.
create or replace view coordinator.dead_letter_counts as
select g.name as "group", t.name as topic, d.partition, count(*) as dead_letters, min(d.died_at) as oldest, max(d.died_at) as newest
from coordinator.dead_letters d
join coordinator.groups g on g.group_id = d.group_id
join coordinator.topics t on t.topic_id = d.topic_id
group by g.name, t.name, d.partition;
