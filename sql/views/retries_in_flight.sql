-- What owners may have in hand, per partition: offsets of their windows that are not settled, and parked messages that run.
-- Which of them a handler is at, only its process knows: see status().
create or replace view coordinator.in_flight as
select o."group", o.topic, o.partition, o.member_id, o.client_id, o.host, o.epoch, o.current_offset as first_offset,
       o.window_open as messages, r.running as retries, o.progress_at as since
from coordinator.offsets o
cross join lateral (
    select count(*) as running from coordinator.retry_list l
    where l."group" = o."group" and l.topic = o.topic and l.partition = o.partition and l.running) r
where o.member_id is not null and (o.window_open > 0 or r.running > 0);
