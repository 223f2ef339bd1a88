"""Delivery: retries, crash charges, acks in the handler's transaction, dead letters."""

from pathlib import Path

from alembic.util import load_python_file

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

run_sql = load_python_file(Path(__file__).parents[1], "run_sql.py")

# Has not changed, and stands on a view that has.
DEPENDENT_VIEW = run_sql.SNAPSHOTS / "0001" / "views" / "offsets_by_group.sql"

TABLES = """
alter table coordinator.groups
    add column max_dead_letters int not null default 100000 check (max_dead_letters >= 0),
    add column dead_letters_dropped bigint not null default 0;

-- What settle_hard did for one claim of an exchange.
create type coordinator.hard_settled as (ord int, done int8multirange, refused bigint[], refusal text);

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

-- What is due, by time; and who waits behind a key, in offset order.
create index retries_due_idx on coordinator.retries (group_id, topic_id, partition, next_at) where not behind_key;
create index retries_behind_idx on coordinator.retries (group_id, topic_id, partition, key, "offset") where behind_key;

create index dead_letters_died_idx on coordinator.dead_letters (group_id, died_at);

-- By whom a charge was caused: read when it is withdrawn.
create index crashes_coordinator_idx on coordinator.crashes (coordinator);
create index retries_crashed_by_idx on coordinator.retries (crashed_by) where crashed_by is not null;
"""

# Signatures and columns that create or replace can't change.
REPLACED = """
drop function coordinator.exchange(uuid, int[], int[], int[], bigint[], bigint[], bigint[], text[], int[]);
drop function coordinator.claim(uuid, int[], int[], int[]);
drop function coordinator.resolve(uuid, int[], int[], int[], bigint[]);
drop view coordinator.group_list;
drop view coordinator.offsets;
"""

DROPS = """
drop view coordinator.dead_letter_counts, coordinator.dead_letter_list, coordinator.retry_list;
drop view coordinator.group_list, coordinator.offsets;
drop function coordinator.settle_hard(int[],int[],int[],bigint[],int[],jsonb);
drop function coordinator.append_error(jsonb,jsonb);
drop function coordinator.wake_behind(int,int,int,bigint,text,timestamptz);
drop function coordinator.bury(int,int,int,bigint,bigint,jsonb,timestamptz);
drop function coordinator.dispatch_due(uuid,int[],int[],int[],bigint[],int[]);
drop function coordinator.fetch_retries(int[],int[],int[],bigint[],text[]);
drop function coordinator.ack(uuid,int,int,int,bigint,bigint[],int[]);
drop function coordinator.transaction_outcome(text);
drop function coordinator.fold_acks(int,int,int);
drop function coordinator.charge_crash(uuid);
drop function coordinator.withdraw_charge(uuid);
drop function coordinator.dead_letter_stats(text,text,int,bigint,text,text,text,timestamptz,timestamptz);
drop function coordinator.select_dead_letters(
    text,text,int,bigint,text,text,text,timestamptz,timestamptz,timestamptz,text,int,bigint,int,boolean,bigint);
drop function coordinator.dead_letter_totals(text);
drop function coordinator.set_max_dead_letters(text,int);
drop function coordinator.group_id_of(text);
drop function coordinator.replay(text,text,int,bigint[],int);
drop function coordinator.purge(text,text,int,bigint[]);
drop function coordinator.trim_dead_letters(int);
drop function coordinator.exchange(uuid,int[],int[],int[],bigint[],bigint[],bigint[],text[],int[],jsonb);
drop function coordinator.claim(uuid,int[],int[],int[]);
drop function coordinator.resolve(uuid,int[],int[],int[],bigint[]);
drop type coordinator.hard_settled;
drop table coordinator.dead_letters, coordinator.acks, coordinator.crashes, coordinator.retries;
alter table coordinator.groups drop column max_dead_letters, drop column dead_letters_dropped;
"""


def upgrade() -> None:
    run_sql.run_text(TABLES)
    run_sql.run_text(REPLACED)
    run_sql.run_snapshot(revision)
    run_sql.run_file(DEPENDENT_VIEW)


def downgrade() -> None:
    """Drop what this revision added; retries and dead letters are lost, so drain them first."""
    run_sql.run_text(DROPS)
    run_sql.run_older_copies(revision)
    run_sql.run_file(DEPENDENT_VIEW)
