-- Messages that wait: for their time, behind their key, or handed out again (running).
create or replace view coordinator.retry_list as
select g.name as "group", t.name as topic, r.partition, r."offset", r.key, r.fails, r.crashes, r.replays, r.next_at,
       r.behind_key, r.dispatched_epoch is not null as running, r.errors -> -1 ->> 'error' as last_error, r.created_at
from coordinator.retries r
join coordinator.groups g on g.group_id = r.group_id
join coordinator.topics t on t.topic_id = r.topic_id;
