-- The tables as they are now. Every text says the schema's default name followed by a dot; the placeholder rule
-- (docs/decisions/0001) puts the real name in. Identifiers made at run time are built from numbers of these rows alone.

create sequence coordinator.topic_ids as int;

create table coordinator.topics (
    topic_id int primary key,
    name text not null unique check (name ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$'),
    partitions int not null check (partitions between 1 and 1024),
    max_message_bytes int not null check (max_message_bytes between 1 and 268435456),
    wake boolean not null,
    -- The topic's own table, partitioned by segment; segment n is the table of that name with _s<n> behind it.
    messages regclass not null,
    -- last_value is the current segment. A sequence and not a column, because it is not subject to a snapshot.
    segment_sequence regclass not null,
    -- One sequence per partition, partition p at place p + 1. last_value is the highest offset handed out.
    offset_sequences regclass[] not null,
    first_segment int not null default 1,
    created_at timestamptz not null,
    check (cardinality(offset_sequences) = partitions)
);

create table coordinator.segments (
    topic_id int not null references coordinator.topics on delete cascade,
    segment int not null,
    created_at timestamptz not null,
    closed_at timestamptz,
    -- Rows of this segment have offsets above floors[p + 1] (read before it became current) and at most
    -- ceilings[p + 1] (read after the next became current). Null: not known, which bounds nothing.
    floors bigint[],
    ceilings bigint[],
    primary key (topic_id, segment)
);

create table coordinator.groups (
    group_id int generated always as identity primary key,
    name text not null unique check (name ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$'),
    -- Rises with every change of membership; a plan is stored only for the version it was made from.
    version bigint not null default 1,
    planned_version bigint not null default 0,
    created_at timestamptz not null
) with (fillfactor = 70);

create table coordinator.group_topics (
    group_id int not null references coordinator.groups on delete cascade,
    topic_id int not null references coordinator.topics,
    started_from text not null,
    created_at timestamptz not null,
    primary key (group_id, topic_id)
);

create table coordinator.coordinators (
    coordinator uuid primary key,
    client_id text not null,
    host text not null,
    pid int not null,
    state text not null check (state in ('alive', 'draining', 'dead')),
    lease_s double precision not null check (lease_s > 0),
    lease_until timestamptz not null,
    started_at timestamptz not null,
    died_at timestamptz
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

create table coordinator.members (
    group_id int not null references coordinator.groups on delete cascade,
    coordinator uuid not null references coordinator.coordinators on delete cascade,
    topic_ids int[] not null,
    joined_at timestamptz not null,
    primary key (group_id, coordinator)
);

-- Changes only with ownership: handlers at REPEATABLE READ hold KEY SHARE here, and any other update fails them with 40001.
create table coordinator.claims (
    group_id int not null,
    topic_id int not null,
    partition int not null,
    start_offset bigint not null,
    owner uuid,
    epoch bigint not null default 0,
    resets int not null default 0,
    claimed_at timestamptz,
    primary key (group_id, topic_id, partition),
    foreign key (group_id, topic_id) references coordinator.group_topics on delete cascade
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

create table coordinator.targets (
    group_id int not null,
    topic_id int not null,
    partition int not null,
    coordinator uuid not null,
    primary key (group_id, topic_id, partition),
    foreign key (group_id, topic_id, partition) references coordinator.claims on delete cascade
) with (fillfactor = 70);

-- No foreign key: its check would cost as much as the insert, and the fence holds the claim's row already.
-- Insert-only: an UPDATE of one row per partition slows down linearly under any long snapshot, see docs/decisions.
create table coordinator.progress (
    group_id int not null,
    topic_id int not null,
    partition int not null,
    seq bigint not null,
    epoch bigint not null,
    committed bigint not null,
    hwm bigint not null,
    done int8multirange not null,
    -- The oldest row that is kept as history; it lets an exchange delete one row by its key, without a search.
    oldest_seq bigint not null,
    at timestamptz not null,
    primary key (group_id, topic_id, partition, seq),
    check (committed <= hwm)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
