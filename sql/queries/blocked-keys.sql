-- Keys whose messages wait behind a failing one: which one, why, and when it is tried again.
select r."group", r.topic, r.partition, r.key, min(r."offset") filter (where not r.behind_key) as failing_offset,
       count(*) filter (where r.behind_key) as behind, min(r.created_at) as since,
       min(r.next_at) filter (where not r.behind_key) as next_at, max(r.fails) as fails,
       (array_agg(split_part(r.last_error, E'\n', 1) order by r."offset") filter (where not r.behind_key))[1] as error
from coordinator.retry_list r
where r.key is not null
group by r."group", r.topic, r.partition, r.key
order by behind desc, since;
