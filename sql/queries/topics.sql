-- Topics with size and pace.
select s.topic, s.partitions, s.segment - s.first_segment + 1 as segments, s.bytes, s.messages, r.published_per_s
from coordinator.topic_sizes s
join coordinator.topic_rates r on r.topic = s.topic
order by s.bytes desc;
