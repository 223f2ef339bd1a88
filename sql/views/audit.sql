-- Who changed what by hand, when and why: seeks, pauses, skips, deletions, changes of topics.
create or replace view coordinator.audit_list as
select a.audit_id, a.at, a.actor, a.application, a.action, a."group", a.topic, a.partition, a.from_offset, a.to_offset, a.epoch,
       a.reason, a.detail
from coordinator.audit a;
