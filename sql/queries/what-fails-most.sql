-- Errors of waiting messages and dead letters, the most frequent first.
select f."group", f.topic, f.error, count(*) as messages, count(*) filter (where f.dead) as dead_letters
from (select r."group", r.topic, split_part(r.last_error, E'\n', 1) as error, false as dead
      from coordinator.retry_list r where r.last_error is not null
      union all
      select d."group", d.topic, split_part(coalesce(d.error, d.reason), E'\n', 1), true from coordinator.dead_letter_list d) f
group by f."group", f.topic, f.error
order by messages desc, f."group", f.topic
limit 50;
