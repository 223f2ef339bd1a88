-- What holds a snapshot, so that vacuum cannot remove dead rows of any table. Other roles' sessions: for pg_monitor.
select 'session' as kind, a.pid::text as name, a.application_name as detail, age(a.backend_xmin) as age_xids, a.xact_start as since
from pg_stat_activity a where a.backend_xmin is not null and a.pid <> pg_backend_pid()
union all
select 'prepared transaction', x.gid, x.owner::text, age(x.transaction), x.prepared from pg_prepared_xacts x
union all
select 'replication slot', s.slot_name::text, s.slot_type, greatest(age(s.xmin), age(s.catalog_xmin)), null
from pg_replication_slots s where s.xmin is not null or s.catalog_xmin is not null
order by age_xids desc;
