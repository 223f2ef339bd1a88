-- What owners have in hand and since when they have settled nothing, the longest first.
select f."group", f.topic, f.partition, f.client_id, f.host, f.first_offset, f.messages, f.retries, f.since
from coordinator.in_flight f
order by f.since;
