-- What groups gave up on, each with its payload, reason and history.
create or replace view coordinator.dead_letter_list as
select g.name as "group", t.name as topic, d.partition, d."offset", d.key, d.reason, d.error, d.attempts, d.crashes, d.replays,
       d.died_at, d.published_at, d.message_id, d.content_type, d.headers, d.payload, d.errors
from coordinator.dead_letters d
join coordinator.groups g on g.group_id = d.group_id
join coordinator.topics t on t.topic_id = d.topic_id;
