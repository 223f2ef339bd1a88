-- Topics with their size; messages is an upper bound: the offsets handed out.
create or replace view coordinator.topic_sizes as
select d.name as topic, d.partitions, d.segment, d.first_segment, d.max_message_bytes, d.wake, d.created_at, d.bytes,
       (select sum(h.high + 1)::bigint from unnest(d.high_offsets) as h(high)) as messages,
       d.dedup_window_s, d.max_backlog, d.retention_s, d.retention_bytes, d.unconsumed, d.segment_max_age_s, d.segment_max_bytes
from coordinator.describe_topics() d;
