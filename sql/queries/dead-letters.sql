-- The newest dead letters, their payload as JSON where it is.
select d."group", d.topic, d.partition, d."offset", d.key, d.reason, d.error, d.attempts, d.died_at,
       coordinator.decode_json(d.payload) as value
from coordinator.dead_letter_list d
order by d.died_at desc
limit 100;
