"""Groups under fire and operations: what changes of membership, groups, retention and rights need."""

from pathlib import Path

from alembic.util import load_python_file

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

run_sql = load_python_file(Path(__file__).parents[1], "run_sql.py")

# Per area: tables and columns; old signatures and views that create or replace can't change; and the way back of both.
MEMBERSHIP_UP = """
"""
MEMBERSHIP_DOWN = """
"""

GROUPS_UP = """
"""
GROUPS_DOWN = """
"""

# Topics that were made before keep their messages for ever, as they did: no retention_s.
RETENTION_UP = """
alter table coordinator.topics
    add column retention_s double precision check (retention_s >= 1),
    add column retention_bytes bigint check (retention_bytes >= 1),
    add column unconsumed text not null default 'keep' check (unconsumed in ('keep', 'drop')),
    add column segment_max_age_s double precision check (segment_max_age_s >= 1),
    add column segment_max_bytes bigint default 1073741824 check (segment_max_bytes >= 8192),
    add column first_offsets bigint[];
alter table coordinator.segments
    add column publishers text[],
    add column retired_at timestamptz,
    add column blocked_by text;
alter table coordinator.groups
    add column max_dead_letter_age_s double precision check (max_dead_letter_age_s >= 1),
    add column unused_since timestamptz,
    add column expire_s double precision check (expire_s >= 1),
    add column on_expiry text not null default 'release' check (on_expiry in ('release', 'delete'));
create table coordinator.skips (
    skip_id bigint generated always as identity primary key,
    group_id int not null references coordinator.groups on delete cascade,
    topic_id int not null references coordinator.topics on delete cascade,
    partition int not null,
    offsets int8multirange not null,
    reason text not null,
    skipped_by text,
    at timestamptz not null
);
create table coordinator.maintenance (
    task text primary key,
    tried_at timestamptz not null,
    succeeded_at timestamptz,
    error text
);
create index skips_partition_idx on coordinator.skips (group_id, topic_id, partition, at);
"""
RETENTION_DOWN = """
drop table coordinator.skips, coordinator.maintenance;
alter table coordinator.groups drop column max_dead_letter_age_s, drop column unused_since, drop column expire_s, drop column on_expiry;
alter table coordinator.segments drop column publishers, drop column retired_at, drop column blocked_by;
alter table coordinator.topics drop column retention_s, drop column retention_bytes, drop column unconsumed,
    drop column segment_max_age_s, drop column segment_max_bytes, drop column first_offsets;
"""

RIGHTS_UP = """
"""
RIGHTS_DOWN = """
"""

VIEWS_UP = """
"""
VIEWS_DOWN = """
drop view coordinator.group_lag;
drop view coordinator.in_flight;
drop view coordinator.claim_list;
drop view coordinator.group_rates;
drop view coordinator.topic_rates;
drop function coordinator.show_messages(text, int, bigint, int);
drop function coordinator.decode_json(bytea);
drop function coordinator.examine_partitions();
drop function coordinator.examine_segments();
drop function coordinator.examine_groups();
drop function coordinator.examine_upkeep();
drop function coordinator.examine_publishers();
"""


def upgrade() -> None:
    for text in (MEMBERSHIP_UP, GROUPS_UP, RETENTION_UP, RIGHTS_UP, VIEWS_UP):
        run_sql.run_text(text)
    run_sql.run_snapshot(revision)


def downgrade() -> None:
    for text in (VIEWS_DOWN, RIGHTS_DOWN, RETENTION_DOWN, GROUPS_DOWN, MEMBERSHIP_DOWN):
        run_sql.run_text(text)
    run_sql.run_older_copies(revision)
