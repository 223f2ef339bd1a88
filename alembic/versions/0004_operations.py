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
alter table coordinator.coordinators
    add column session_pid int,
    add column static_id text,
    add column grace_s double precision not null default 0 check (grace_s >= 0),
    drop constraint coordinators_state_check,
    add check (state in ('alive', 'draining', 'away', 'dead'));
alter table coordinator.groups add column joined_at timestamptz, add column unplanned_since timestamptz;
alter table coordinator.members add column inherited boolean not null default false;
alter table coordinator.retries add column crash_next_at timestamptz;
alter table coordinator.targets add column assigned_at timestamptz not null default clock_timestamp();
drop function coordinator.reap(double precision);
drop function coordinator.register(uuid, text, text, int, double precision);
drop function coordinator.leave(uuid);
drop function coordinator.group_state(int[]);
drop function coordinator.claim(uuid, int[], int[], int[]);
drop function coordinator.charge_crash(uuid);
drop function coordinator.dispatch_due(uuid, int[], int[], int[], bigint[], int[]);
"""
MEMBERSHIP_DOWN = """
drop view coordinator.coordinator_list;
drop view coordinator.hand_overs;
drop function coordinator.reap(double precision, jsonb);
drop function coordinator.register(uuid, text, text, int, double precision, text, double precision, text[]);
drop function coordinator.leave(uuid, boolean);
drop function coordinator.dispatch_due(uuid, int[], int[], int[], bigint[], int[], double precision[]);
drop function coordinator.group_state(int[]);
drop function coordinator.claim(uuid, int[], int[], int[], double precision);
drop function coordinator.evict(uuid);
drop function coordinator.drain(uuid, boolean);
drop function coordinator.raise_dead(uuid);
drop function coordinator.stuck_claims(int[]);
drop function coordinator.probe_claim(int, int, int, int);
drop function coordinator.blockers_of(int);
drop function coordinator.end_blockers(int);
drop function coordinator.charge_crash(uuid, interval);
drop function coordinator.hold_session(uuid, int);
drop function coordinator.lost_sessions();
drop function coordinator.session_key(uuid, int);
drop function coordinator.rejoin_group(uuid, text, int, text[], int[]);
drop function coordinator.add_member(int, uuid, int[]);
delete from coordinator.coordinators c where c.state = 'away';
alter table coordinator.coordinators
    drop constraint coordinators_state_check,
    add check (state in ('alive', 'draining', 'dead')),
    drop column grace_s,
    drop column static_id,
    drop column session_pid;
alter table coordinator.groups drop column joined_at, drop column unplanned_since;
alter table coordinator.members drop column inherited;
alter table coordinator.retries drop column crash_next_at;
alter table coordinator.targets drop column assigned_at;
"""

GROUPS_UP = """
alter table coordinator.targets drop constraint targets_group_id_topic_id_partition_fkey;
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

create table coordinator.past_failures (
    group_id int not null references coordinator.groups on delete cascade,
    topic_id int not null,
    partition int not null,
    "offset" bigint not null,
    errors jsonb not null,
    at timestamptz not null,
    primary key (group_id, topic_id, partition, "offset")
);

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

create index audit_at_idx on coordinator.audit (at);
"""
GROUPS_DOWN = """
drop function coordinator.nearest(text, text[]);
drop function coordinator.topic_hint(text);
drop function coordinator.group_hint(text);
drop function coordinator.record(
    text, text, int, text, int, int, bigint, bigint, bigint, text, jsonb);
drop function coordinator.actor();
drop function coordinator.live_members(int, int);
drop function coordinator.log_start(int, int);
drop function coordinator.pause(text, text, int[], text);
drop function coordinator.resume(text, text, int[], text);
drop function coordinator.claims_named(int, text, text, int[]);
drop function coordinator.hold(text, text, int[], double precision);
drop function coordinator.let_go(text, text, int[]);
drop function coordinator.fence_claim(int, int, int, bigint, int8multirange, int, timestamptz);
drop function coordinator.lock_claim(int, text, int, text, int);
drop function coordinator.return_letter(coordinator.retries, text, timestamptz);
drop function coordinator.join_errors(jsonb, jsonb);
drop function coordinator.seek(text, text, int, text, bigint, timestamptz, boolean, boolean, text);
drop function coordinator.remember_failures(int, int, int, bigint, jsonb, timestamptz);
drop function coordinator.forget_failures(int, int);
drop function coordinator.in_log(coordinator.topics, int, bigint);
drop function coordinator.skip(text, text, int, bigint, boolean, boolean, text);
drop function coordinator.delete_group(text, boolean, text);
drop function coordinator.delete_topic(text, boolean, text);
drop function coordinator.drop_remains();
drop function coordinator.raise_gone(int, regclass);
drop function coordinator.add_partitions(text, int, text);
drop function coordinator.alter_topic(text, jsonb, text);
drop function coordinator.cancel_scheduled(text, bigint[]);
drop function coordinator.oldest_unsettled(text);
drop function coordinator.first_rows(int, int[], bigint[], bigint[]);
drop function coordinator.window_select(text, bigint);
delete from coordinator.targets t
where not exists (select from coordinator.claims c
                  where c.group_id = t.group_id and c.topic_id = t.topic_id and c.partition = t.partition);
alter table coordinator.targets add foreign key (group_id, topic_id, partition) references coordinator.claims on delete cascade;
drop table coordinator.pauses, coordinator.past_failures, coordinator.audit;
"""

# Topics that were made before keep their messages for ever, as they did: no retention_s.
RETENTION_UP = """
alter table coordinator.topics
    add column retention_s double precision check (retention_s between 1 and 3.2e9),
    add column retention_bytes bigint check (retention_bytes >= 1),
    add column unconsumed text not null default 'keep' check (unconsumed in ('keep', 'drop')),
    add column segment_max_age_s double precision check (segment_max_age_s between 1 and 3.2e9),
    add column segment_max_bytes bigint default 1073741824 check (segment_max_bytes >= 8192),
    add column first_offsets bigint[];
alter table coordinator.segments
    add column publishers text[],
    add column retired_at timestamptz,
    add column blocked_by text;
alter table coordinator.groups
    add column max_dead_letter_age_s double precision check (max_dead_letter_age_s between 1 and 3.2e9),
    add column unused_since timestamptz,
    add column expire_s double precision check (expire_s between 1 and 3.2e9),
    add column on_expiry text not null default 'release' check (on_expiry in ('release', 'delete'));
create table coordinator.skips (
    skip_id bigint generated always as identity primary key,
    group_id int not null references coordinator.groups on delete cascade,
    topic_id int not null references coordinator.topics on delete cascade,
    partition int not null,
    offsets int8multirange not null,
    reason text not null,
    skipped_by text,
    note text,
    key text,
    errors jsonb,
    at timestamptz not null
);
create table coordinator.maintenance (
    task text primary key,
    tried_at timestamptz not null,
    succeeded_at timestamptz,
    error text
);
create index skips_partition_idx on coordinator.skips (group_id, topic_id, partition, at);

drop view coordinator.topic_sizes;
drop function coordinator.describe_topics(text[]);
drop function coordinator.create_topic(text, int, int, boolean, double precision, bigint);
"""
RETENTION_DOWN = """
drop view coordinator.topic_sizes;
drop function coordinator.describe_topics(text[]);
drop function coordinator.create_topic(
    text, int, int, boolean, double precision, bigint, double precision, bigint, text, double precision, bigint);
drop function coordinator.check_retention(double precision, bigint, text, double precision, bigint);
drop function coordinator.rotate_due();
drop function coordinator.sweep(int, double precision);
drop function coordinator.set_group_expiry(text, double precision, text, double precision);
drop function coordinator.skip_expired(int);
drop function coordinator.retire_segments();
drop function coordinator.drop_retired(double precision);
drop function coordinator.detach_command(text, int);
drop function coordinator.lock_holders(regclass[]);
drop function coordinator.expired_segment(coordinator.topics);
drop function coordinator.segment_table(coordinator.topics, int);
drop function coordinator.open_publishers(coordinator.topics);
drop function coordinator.skip_below(int, int, int, bigint, text, text);
drop function coordinator.held_offset(int, int, int);
drop function coordinator.group_expired(int);
drop function coordinator.begin_task(text, double precision);
drop function coordinator.end_task(text);
drop function coordinator.fail_task(text, text);
drop table coordinator.skips, coordinator.maintenance;
alter table coordinator.groups drop column max_dead_letter_age_s, drop column unused_since, drop column expire_s,
    drop column on_expiry;
alter table coordinator.segments drop column publishers, drop column retired_at, drop column blocked_by;
alter table coordinator.topics drop column retention_s, drop column retention_bytes, drop column unconsumed,
    drop column segment_max_age_s, drop column segment_max_bytes, drop column first_offsets;
"""

RIGHTS_UP = """
alter table coordinator.topics add column publish_roles text[], add column subscribe_roles text[];
create table coordinator.role_grants (
    role text not null,
    kind text not null check (kind in ('publisher', 'consumer', 'reader', 'operator')),
    primary key (role, kind)
);
"""
RIGHTS_DOWN = """
drop function coordinator.repair_sequences(boolean);
drop function coordinator.apply_grants(text, text);
drop function coordinator.grant_statements(text, text);
drop function coordinator.rights_of(text);
drop function coordinator.set_topic_rights(text, text[], text[]);
drop function coordinator.check_subscribe(int[]);
drop function coordinator.may(text[]);
drop table coordinator.role_grants;
alter table coordinator.topics drop column publish_roles, drop column subscribe_roles;
"""

OBSERVE_UP = """
create table coordinator.exporters (
    place int primary key check (place = 1),
    exporter uuid not null,
    held_until timestamptz not null
) with (fillfactor = 50);
"""
OBSERVE_DOWN = """
drop function coordinator.group_gauges(), coordinator.group_totals(), coordinator.server_gauges(),
    coordinator.first_published(int, int[], int[], bigint[], int8multirange[]),
    coordinator.take_export_turn(uuid, double precision), coordinator.end_export_turn(uuid);
drop table coordinator.exporters;
"""

VIEWS_UP = """
"""
VIEWS_DOWN = """
drop view coordinator.group_lag;
drop view coordinator.in_flight;
drop view coordinator.claim_list;
drop view coordinator.group_rates;
drop view coordinator.topic_rates;
drop function coordinator.message_states(text, int, bigint);
drop function coordinator.show_messages(text, int, bigint, int);
drop function coordinator.decode_json(bytea);
drop view coordinator.pause_list, coordinator.skip_list, coordinator.audit_list, coordinator.group_list, coordinator.offsets;
drop function coordinator.examine_partitions();
drop function coordinator.examine_segments();
drop function coordinator.examine_groups();
drop function coordinator.examine_upkeep();
drop function coordinator.examine_publishers();
"""

HISTORY_DOWN = """
drop function coordinator.ack_kept(int, int, int, bigint, bigint, int);
drop function coordinator.give_up(uuid);
drop function coordinator.history();
"""


def upgrade() -> None:
    for text in (MEMBERSHIP_UP, GROUPS_UP, RETENTION_UP, RIGHTS_UP, OBSERVE_UP, VIEWS_UP):
        run_sql.run_text(text)
    run_sql.run_snapshot(revision)


def downgrade() -> None:
    run_sql.run_text(VIEWS_DOWN)
    # The new one reads what goes now, and another view reads it.
    run_sql.run_file(run_sql.SNAPSHOTS / "0002" / "views" / "offsets.sql")
    for text in (HISTORY_DOWN, OBSERVE_DOWN, RIGHTS_DOWN, RETENTION_DOWN, GROUPS_DOWN, MEMBERSHIP_DOWN):
        run_sql.run_text(text)
    run_sql.run_older_copies(revision)
