-- Groups by how far they are behind, with the worst partition and who reads.
select l."group", l.topic, l.lag, l.max_partition_lag, l.parked, l.dead_letters, l.owned, l.partitions, l.progress_at
from coordinator.group_lag l
order by l.lag desc, l."group", l.topic;
