-- What is paused, by whom and why. Of kind hold: a seek, a skip or a deletion is under way, until expires_at at the latest.
create or replace view coordinator.pause_list as
select g.name as "group", t.name as topic, p.partition, p.kind, p.paused_by, p.reason, p.paused_at, p.expires_at
from coordinator.pauses p
join coordinator.groups g on g.group_id = p.group_id
join coordinator.topics t on t.topic_id = p.topic_id;
