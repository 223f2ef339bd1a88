-- Every process that consumes, or did within the last day. session: held, lost, or none (behind a pooler, or gone). Groups' shares of it
-- are in group_members.
create or replace view coordinator.coordinator_list as
select c.coordinator as member_id, c.client_id, c.static_id, c.host, c.pid,
       case when c.state in ('alive', 'draining') and c.lease_until < coordinator.now_() then 'expired' else c.state end as state,
       case when c.session_pid is null or c.state in ('dead', 'away') then 'none' when l.coordinator is not null then 'lost' else 'held' end as session,
       c.started_at, c.lease_until, extract(epoch from c.lease_until - coordinator.now_())::double precision as lease_left_s, c.died_at,
       (select array_agg(g.name order by g.name) from coordinator.members m
        join coordinator.groups g on g.group_id = m.group_id where m.coordinator = c.coordinator) as groups,
       (select count(*) from coordinator.claims k where k.owner = c.coordinator) as partitions
from coordinator.coordinators c
left join coordinator.lost_sessions() l on l.coordinator = c.coordinator;
