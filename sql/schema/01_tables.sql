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
    -- How long a message id keeps a second message with the same one out; null: ids are not compared. Explicit dedup keys
    -- are compared in any case, without a window of the topic's own for a day.
    dedup_window_s double precision check (dedup_window_s between 1 and 31622400),
    -- Publishes are refused while the slowest group has this many messages to settle; null: never.
    max_backlog bigint check (max_backlog >= 1),
    -- A closed segment may go when it was closed so long ago, or when those behind it hold so many bytes; null: for neither reason.
    retention_s double precision check (retention_s between 1 and 3.2e9),
    retention_bytes bigint check (retention_bytes >= 1),
    -- Where a group has not passed such a segment: it is kept, or the group is made to skip its messages.
    unconsumed text not null default 'keep' check (unconsumed in ('keep', 'drop')),
    -- When a segment is closed; no age: an eighth of retention_s, a minute to a day.
    segment_max_age_s double precision check (segment_max_age_s between 1 and 3.2e9),
    segment_max_bytes bigint default 1073741824 check (segment_max_bytes >= 8192),
    -- The lowest offset of each partition, at p + 1, that is kept; null: 0. Rises with first_segment, under this row's lock.
    first_offsets bigint[],
    -- Roles that may publish and read, by name; null: whoever may call the functions.
    publish_roles text[],
    subscribe_roles text[],
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
    -- Who may still commit into it, by virtualtransaction: open publishers of the topic after it was closed. Null: not known.
    publishers text[],
    -- Nobody reads it any more, its table is to go; and what was in the way of that at the last try.
    retired_at timestamptz,
    blocked_by text,
    primary key (topic_id, segment)
);

create table coordinator.groups (
    group_id int generated always as identity primary key,
    name text not null unique check (name ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$'),
    -- Rises with every change of membership; a plan is stored only for the version it was made from.
    version bigint not null default 1,
    planned_version bigint not null default 0,
    created_at timestamptz not null,
    max_dead_letters int not null default 100000 check (max_dead_letters >= 0),
    dead_letters_dropped bigint not null default 0,
    -- The newest join, and the first one that no plan knows yet: plans wait for a moment without joins.
    joined_at timestamptz,
    unplanned_since timestamptz,
    -- Dead letters that are older are dropped; null: none is.
    max_dead_letter_age_s double precision check (max_dead_letter_age_s between 1 and 3.2e9),
    -- Since when nobody is a member, as maintenance has seen it; after expire_s of that the group holds nothing back any more
    -- (release: it skips what retention drops), or is deleted. Null: never.
    unused_since timestamptz,
    expire_s double precision check (expire_s between 1 and 3.2e9),
    on_expiry text not null default 'release' check (on_expiry in ('release', 'delete'))
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
    state text not null check (state in ('alive', 'draining', 'away', 'dead')),
    lease_s double precision not null check (lease_s > 0),
    lease_until timestamptz not null,
    started_at timestamptz not null,
    died_at timestamptz,
    -- The backend that holds the process's session lock; null: none was announced, and the lease alone decides.
    session_pid int,
    -- The same at every start of the process; a new incarnation replaces the old one, and gets what was its.
    static_id text,
    -- How long its place is kept after it has left (state away; lease_until is then the end of that).
    grace_s double precision not null default 0 check (grace_s >= 0)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

create table coordinator.members (
    group_id int not null references coordinator.groups on delete cascade,
    coordinator uuid not null references coordinator.coordinators on delete cascade,
    topic_ids int[] not null,
    joined_at timestamptz not null,
    -- Taken over from an earlier incarnation, which may have read other topics.
    inherited boolean not null default false,
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

-- No foreign key to claims: its check would wait, with the group's row held, for a claim of which reap holds the row and waits
-- for the group.
create table coordinator.targets (
    group_id int not null,
    topic_id int not null,
    partition int not null,
    coordinator uuid not null,
    -- Since when: a claim that is not handed over by then is taken from its owner by force.
    assigned_at timestamptz not null default clock_timestamp(),
    primary key (group_id, topic_id, partition)
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

-- Messages that wait: failed and due later, held behind their key, or replayed. A parked offset is in done, or below committed.
create table coordinator.retries (
    group_id int not null,
    topic_id int not null,
    partition int not null,
    "offset" bigint not null,
    key text,
    fails int not null,
    crashes int not null,
    -- Was the message the only one that may have been running when the last crash was charged to it?
    alone boolean not null default false,
    crashed_by uuid,
    next_at timestamptz not null,
    behind_key boolean not null default false,
    -- The epoch in which a run of it was handed out; null while it waits.
    dispatched_epoch bigint,
    replays int not null default 0,
    errors jsonb not null default '[]',
    created_at timestamptz not null,
    -- Only for replayed dead letters, whose segment may be gone.
    published_at timestamptz,
    message_id uuid,
    content_type text,
    headers jsonb,
    payload bytea,
    -- next_at as the crash of crashed_by has set it: what it is still when nothing has failed since.
    crash_next_at timestamptz,
    primary key (group_id, topic_id, partition, "offset")
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500);

-- What dead processes may have started, one row per unclean takeover; charges what has no retries row.
create table coordinator.crashes (
    group_id int not null,
    topic_id int not null,
    partition int not null,
    epoch bigint not null,
    coordinator uuid not null,
    offsets int8multirange not null,
    alone boolean not null,
    at timestamptz not null,
    primary key (group_id, topic_id, partition, epoch)
);

-- Acks made in a handler's own transaction, until the owner has folded them into its progress.
create table coordinator.acks (
    group_id int not null,
    topic_id int not null,
    partition int not null,
    "offset" bigint not null,
    replay int not null,
    epoch bigint not null,
    primary key (group_id, topic_id, partition, "offset", replay)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

create table coordinator.dead_letters (
    group_id int not null references coordinator.groups on delete cascade,
    topic_id int not null,
    partition int not null,
    "offset" bigint not null,
    key text,
    message_id uuid not null,
    published_at timestamptz not null,
    content_type text,
    headers jsonb,
    payload bytea not null,
    reason text not null,
    error text,
    attempts int not null,
    crashes int not null,
    replays int not null,
    errors jsonb not null,
    died_at timestamptz not null,
    primary key (group_id, topic_id, partition, "offset")
);

-- What was published under which key. The unique key is the one place where a publisher may wait for another.
-- No foreign key: its check would lock the topic's row in every publisher's transaction. Each row is written twice in one
-- transaction, with its key and then with its place, so half of each page is kept for the second version.
create table coordinator.dedup (
    topic_id int not null,
    dedup_key text collate "C" not null,
    message_id uuid not null,
    -- Null while the message waits in scheduled; due_at says until when.
    partition int,
    "offset" bigint,
    due_at timestamptz,
    expires_at timestamptz not null,
    primary key (topic_id, dedup_key)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000);

-- Messages that are to be published later. A row is moved by whoever locks it (FOR UPDATE SKIP LOCKED), and deleted then.
create table coordinator.scheduled (
    schedule_id bigint generated always as identity primary key,
    topic_id int not null references coordinator.topics on delete cascade,
    -- As the publisher wanted it; next_at is when the move is tried next, later than due_at once it has failed.
    due_at timestamptz not null,
    next_at timestamptz not null,
    attempts int not null default 0,
    last_error text,
    partition int,
    message_id uuid not null,
    key text,
    content_type text,
    headers jsonb,
    payload bytea not null,
    dedup_key text collate "C",
    created_at timestamptz not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Topics that refuse what is due: the topic is left alone for a while, not each of its rows written again (R14).
create table coordinator.schedule_pauses (
    topic_id int primary key references coordinator.topics on delete cascade,
    paused_until timestamptz not null,
    attempts int not null,
    last_error text not null
);

-- What a group has passed without settling it, each range once; offsets that were rolled back may be among them. Gone where a seek
-- backwards opens the offsets again; audit keeps that it was.
create table coordinator.skips (
    skip_id bigint generated always as identity primary key,
    group_id int not null references coordinator.groups on delete cascade,
    topic_id int not null references coordinator.topics on delete cascade,
    partition int not null,
    offsets int8multirange not null,
    -- retention, seek, skip
    reason text not null,
    -- Who asked for it, where somebody did, and why.
    skipped_by text,
    note text,
    -- Of one message that was parked or open: its key, and how it had failed.
    key text,
    errors jsonb,
    at timestamptz not null
);

-- Which roles were granted what, so that an upgrade can do it again.
create table coordinator.role_grants (
    role text not null,
    kind text not null check (kind in ('publisher', 'consumer', 'reader', 'operator')),
    primary key (role, kind)
);

-- When each task of maintenance was last tried and last went well, whoever did it.
create table coordinator.maintenance (
    task text primary key,
    tried_at timestamptz not null,
    succeeded_at timestamptz,
    error text
);

-- What must not be fetched or handed over now. A table of its own: an update of claims fails handlers at REPEATABLE READ.
-- operator: until it is resumed. hold: while a seek, a skip or a deletion waits for the claim's row, at most until expires_at.
create table coordinator.pauses (
    group_id int not null,
    topic_id int not null,
    partition int not null,
    kind text not null check (kind in ('operator', 'hold')),
    paused_by text not null,
    reason text,
    paused_at timestamptz not null,
    expires_at timestamptz,
    primary key (group_id, topic_id, partition, kind),
    foreign key (group_id, topic_id) references coordinator.group_topics on delete cascade
);

-- How messages had failed before a seek gave them back: joined to their history when they die again.
create table coordinator.past_failures (
    group_id int not null references coordinator.groups on delete cascade,
    topic_id int not null,
    partition int not null,
    "offset" bigint not null,
    errors jsonb not null,
    at timestamptz not null,
    primary key (group_id, topic_id, partition, "offset")
);

-- Who changed what by hand, when and why. Names and numbers, no references: a row outlives what it speaks of.
create table coordinator.audit (
    audit_id bigint generated always as identity primary key,
    at timestamptz not null,
    actor text not null,
    application text not null,
    action text not null,
    "group" text,
    group_id int,
    topic text,
    topic_id int,
    partition int,
    from_offset bigint,
    to_offset bigint,
    epoch bigint,
    reason text,
    detail jsonb not null default '{}'
);

-- Which process exports the gauges of the database; one row.
create table coordinator.exporters (
    place int primary key check (place = 1),
    exporter uuid not null,
    held_until timestamptz not null
) with (fillfactor = 50);
