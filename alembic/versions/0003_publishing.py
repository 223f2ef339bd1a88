"""Publishing, completed: dedup keys, scheduled messages, a limit for the backlog."""

from pathlib import Path

from alembic.util import load_python_file

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

run_sql = load_python_file(Path(__file__).parents[1], "run_sql.py")

TABLES = """
alter table coordinator.topics
    add column dedup_window_s double precision check (dedup_window_s between 1 and 31622400),
    add column max_backlog bigint check (max_backlog >= 1);

create table coordinator.dedup (
    topic_id int not null,
    dedup_key text collate "C" not null,
    message_id uuid not null,
    partition int,
    "offset" bigint,
    due_at timestamptz,
    expires_at timestamptz not null,
    primary key (topic_id, dedup_key)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000);

create table coordinator.scheduled (
    schedule_id bigint generated always as identity primary key,
    topic_id int not null references coordinator.topics on delete cascade,
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

create table coordinator.schedule_pauses (
    topic_id int primary key references coordinator.topics on delete cascade,
    paused_until timestamptz not null,
    attempts int not null,
    last_error text not null
);

create index dedup_expires_idx on coordinator.dedup (expires_at);
create index scheduled_due_idx on coordinator.scheduled (topic_id, next_at, schedule_id);
"""

# What create or replace can't change, since parameters or columns were added; the view goes with the function it reads.
OLD_SIGNATURES = """
drop view coordinator.topic_sizes;
drop function coordinator.describe_topics(text[]);
drop function coordinator.create_topic(text, int, int, boolean);
drop function coordinator.publish(text, jsonb, text, jsonb, uuid, int, boolean);
drop function coordinator.publish_bytes(text, bytea, text, jsonb, uuid, int, text, boolean);
drop function coordinator.publish_many(text, bytea[], text[], text[], uuid[], text[], int[], boolean);
"""

NEW_SIGNATURES = """
drop view coordinator.topic_sizes;
drop view coordinator.scheduled_messages;
drop function coordinator.describe_topics(text[]);
drop function coordinator.create_topic(text, int, int, boolean, double precision, bigint);
drop function coordinator.publish(
    text, jsonb, text, jsonb, uuid, int, boolean, text, text, double precision, timestamptz);
drop function coordinator.publish_bytes(
    text, bytea, text, jsonb, uuid, int, text, boolean, text, text, double precision, timestamptz);
drop function coordinator.publish_many(
    text, bytea[], text[], text[], uuid[], text[], int[], boolean, text[], text, double precision[], timestamptz[]);
drop function coordinator.publish_selected(
    coordinator.topics, bytea[], text[], text[], uuid[], text[], int[], boolean, text[], text, double precision[],
    timestamptz[]);
drop function coordinator.reserve_dedup_keys(int, text[], uuid[], timestamptz[], interval, timestamptz);
drop function coordinator.place_dedup_keys(int, text[], uuid[], int[], bigint[]);
drop function coordinator.dedup_places(int, text[]);
drop function coordinator.schedule_messages(
    coordinator.topics, bytea[], text[], text[], uuid[], text[], int[], text[], timestamptz[], boolean[]);
drop function coordinator.check_backlog(coordinator.topics, int);
drop function coordinator.backlog(coordinator.topics);
drop function coordinator.scheduled_topics();
drop function coordinator.move_due(int);
drop function coordinator.move_due_of(int, int, timestamptz);
drop function coordinator.move_scheduled(coordinator.topics, bigint[]);
drop function coordinator.refused_by_topic(text);
drop function coordinator.expire_dedup(int);
drop function coordinator.maintain_publishing(int);
"""


def upgrade() -> None:
    run_sql.run_text(TABLES)
    run_sql.run_text(OLD_SIGNATURES)
    run_sql.run_snapshot(revision)


def downgrade() -> None:
    """Take the features back; messages that still wait for their time and all dedup keys are dropped."""
    run_sql.run_text(NEW_SIGNATURES)
    run_sql.run_older_copies(revision)
    run_sql.run_text("""
drop table coordinator.dedup, coordinator.scheduled, coordinator.schedule_pauses;
alter table coordinator.topics drop column dedup_window_s, drop column max_backlog;
""")
