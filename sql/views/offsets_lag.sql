-- How far each group is behind in each topic. lag is an upper bound, as in offsets.
create or replace view coordinator.group_lag as
select o."group", o.topic, count(*)::int as partitions, count(*) filter (where o.member_state not in ('expired', 'dead'))::int as owned, sum(o.lag)::bigint as lag,
       max(o.lag) as max_partition_lag, sum(o.window_open)::bigint as in_flight, sum(o.parked)::bigint as parked,
       coalesce((select sum(d.dead_letters)::bigint from coordinator.dead_letter_counts d
                 where d."group" = o."group" and d.topic = o.topic), 0) as dead_letters,
       max(o.progress_at) as progress_at
from coordinator.offsets o
group by o."group", o.topic;
