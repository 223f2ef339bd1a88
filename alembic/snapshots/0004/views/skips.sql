-- What groups were made to pass unhandled: by seeks forwards, operators' skips, or retention. key, error: of parked messages.
create or replace view coordinator.skip_list as
select g.name as "group", t.name as topic, s.partition, s.offsets, coordinator.multirange_size(s.offsets) as skipped, s.reason,
       s.skipped_by, s.note, s.key, s.errors -> -1 ->> 'error' as error, s.at
from coordinator.skips s
join coordinator.groups g on g.group_id = s.group_id
join coordinator.topics t on t.topic_id = s.topic_id;
