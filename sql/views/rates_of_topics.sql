-- How many offsets of each topic were handed out per second in the last ten minutes: a few look-ups in indexes a partition.
create or replace view coordinator.topic_rates as
select t.name as topic, sum(s.published)::bigint as published, round(sum(s.published) / 600, 3)::double precision as published_per_s
from coordinator.topics t
cross join lateral generate_series(0, t.partitions - 1) as p(n)
cross join lateral (
    select coordinator.high_offset(t.topic_id, p.n) + 1
           - coordinator.offset_at(t.topic_id, p.n, coordinator.now_() - interval '10 minutes') as published) s
group by t.name;
