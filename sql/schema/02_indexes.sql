-- Who else owns what: read at takeover and by the views only.
create index claims_owner_idx on coordinator.claims (owner) where owner is not null;

-- What is due, by time; and who waits behind a key, in offset order.
create index retries_due_idx on coordinator.retries (group_id, topic_id, partition, next_at) where not behind_key;
create index retries_behind_idx on coordinator.retries (group_id, topic_id, partition, key, "offset") where behind_key;

create index dead_letters_died_idx on coordinator.dead_letters (group_id, died_at);

-- By whom a charge was caused: read when it is withdrawn.
create index crashes_coordinator_idx on coordinator.crashes (coordinator);
create index retries_crashed_by_idx on coordinator.retries (crashed_by) where crashed_by is not null;

create index dedup_expires_idx on coordinator.dedup (expires_at);

-- The topic first: what is due is looked for topic by topic, so that one with a million refused rows hides no other.
create index scheduled_due_idx on coordinator.scheduled (topic_id, next_at, schedule_id);

create index skips_partition_idx on coordinator.skips (group_id, topic_id, partition, at);

create index audit_at_idx on coordinator.audit (at);
