-- Per topic and group, published and settled per second in the last ten minutes, and how long the rest takes at that pace.
select t.topic, g."group", t.published_per_s, g.settled_per_s, l.lag,
       case when g.settled_per_s > t.published_per_s
            then round((l.lag / (g.settled_per_s - t.published_per_s))::numeric)::bigint end as caught_up_in_s
from coordinator.topic_rates t
left join coordinator.group_rates g on g.topic = t.topic
left join coordinator.group_lag l on l.topic = g.topic and l."group" = g."group"
order by t.topic, g."group";
