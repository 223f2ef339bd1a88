-- Sessions that wait for a lock on our tables, and who holds it. No pid of a blocker: a prepared transaction.
select w.pid, w.usename::text as "user", w.application_name, w.wait_event, w.state_change as since, b.pid as blocked_by,
       h.application_name as blocker, h.state as blocker_state, h.xact_start as blocker_since
from pg_stat_activity w
cross join lateral unnest(pg_blocking_pids(w.pid)) as b(pid)
left join pg_stat_activity h on h.pid = b.pid
where w.datname = current_database() and w.wait_event_type = 'Lock'
order by w.state_change;
