-- Transactions that have published and are not over: a reader that keeps a partition's order waits at their offsets.
select p.topic, p.partition, p.pid, a.usename::text as "user", p.application_name, a.state, p.since
from coordinator.examine_publishers() p
left join pg_stat_activity a on a.pid = p.pid
order by p.since nulls first;
