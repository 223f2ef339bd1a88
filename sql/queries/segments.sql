-- Segments with their sizes. For the owner of the schema: it reads the tables.
select t.name as topic, s.segment, s.created_at, s.closed_at,
       pg_total_relation_size(to_regclass(t.messages::text || '_s' || s.segment)) as bytes
from coordinator.segments s
join coordinator.topics t on t.topic_id = s.topic_id
order by t.name, s.segment;
