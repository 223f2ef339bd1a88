-- Messages that wait for their time. attempts and last_error tell of moves that failed, paused_until of a topic that refuses.
create or replace view coordinator.scheduled_messages as
select s.schedule_id, t.name as topic, s.message_id, s.key, s.due_at, greatest(s.next_at, p.paused_until) as next_at, s.attempts,
       coalesce(s.last_error, p.last_error) as last_error, p.paused_until, octet_length(s.payload) as payload_bytes, s.created_at
from coordinator.scheduled s
join coordinator.topics t on t.topic_id = s.topic_id
left join coordinator.schedule_pauses p on p.topic_id = s.topic_id;
