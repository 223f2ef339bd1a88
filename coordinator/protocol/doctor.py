"""What doctor asks: the functions of sql/functions/doctor, and the catalogue of the server, as data.

An ordinary role may ask all of it. Of other roles' sessions PostgreSQL shows no snapshot to who is not in pg_monitor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from coordinator.protocol.statement import Statement

if TYPE_CHECKING:
    from datetime import datetime


class Place(NamedTuple):
    """Where this connection is, and what its role may do there; schema_owner: None where there is no such schema."""

    user: str
    database: str
    encoding: str
    version: int
    in_recovery: bool
    schema_owner: str | None
    may_use: bool
    may_create: bool
    sees_all_sessions: bool


class PartitionFacts(NamedTuple):
    """A partition's sequence beside its messages; `high` and `last_message` are -1 for none."""

    topic: str
    partition: int
    sequence: str
    high: int
    last_message: int
    cache: int
    increment: int


class SegmentProblem(NamedTuple):
    """problem: missing or detaching; see the function."""

    topic: str
    problem: str
    segment: int | None
    subject: str


class GroupFacts(NamedTuple):
    """What a group does with a topic; see the function."""

    group: str
    topic: str
    members: int
    lag: int
    parked: int
    blocked: int
    open: int
    owned: int
    partitions: int
    progress_at: datetime
    stuck_since: datetime | None
    blocked_since: datetime | None
    oldest_segment: int
    current_segment: int
    pinned_bytes: int


class Upkeep(NamedTuple):
    """What somebody should have done by now: overdue, paused, expired, unreaped, letters, failing, idle; see the function."""

    problem: str
    subject: str
    found: int
    bound: int | None
    since: datetime | None
    detail: str | None = None


class Publisher(NamedTuple):
    """An open transaction that has published; no pid: a prepared one; partition -1: more than 16 of them."""

    topic: str
    partition: int
    pid: int | None
    application_name: str | None
    since: datetime | None


class Snapshot(NamedTuple):
    """What keeps dead rows from being removed. kind: session, walsender, prepared transaction or replication slot."""

    kind: str
    name: str
    detail: str | None
    age_xids: int
    since: datetime | None


class TableFacts(NamedTuple):
    """A table of the schema; `vacuum_at`: so many dead rows and autovacuum should come."""

    table: str
    live: int
    dead: int
    vacuum_at: float
    last_vacuum: datetime | None
    bytes: int


class Routine(NamedTuple):
    """A function as the catalogue has it."""

    name: str
    body: str
    definer: bool


class DefaultPrivilege(NamedTuple):
    """What ALTER DEFAULT PRIVILEGES gives on tables or functions that the schema's owner will make."""

    kind: str
    grantee: str
    privileges: str


PLACE = Statement(
    "place",
    "select current_user::text, current_database()::text, current_setting('server_encoding'), "
    "current_setting('server_version_num')::int, pg_is_in_recovery(), n.owner, coalesce(n.usage, false), "
    "has_database_privilege(current_database(), 'create'), pg_has_role('pg_read_all_stats', 'usage') "
    "from (select 1) o left join (select s.nspowner::regrole::text as owner, has_schema_privilege(s.oid, 'usage') as usage "
    "from pg_catalog.pg_namespace s where s.oid = to_regnamespace(left('coordinator.', -1))) n on true",
    (),
    lambda rows: Place(*rows[0]),
)

NOW: Statement[datetime] = Statement("now_", "select coordinator.now_()", (), lambda rows: rows[0][0])

SETTINGS: Statement[dict[str, str]] = Statement(
    "settings",
    "select s.name, s.setting from pg_catalog.pg_settings s where s.name = any (%s)",
    (
        [
            "autovacuum",
            "autovacuum_naptime",
            "track_counts",
            "fsync",
            "full_page_writes",
            "synchronous_commit",
            "default_transaction_read_only",
            "max_connections",
            "superuser_reserved_connections",
            "max_locks_per_transaction",
            "max_prepared_transactions",
        ],
    ),
    dict,
)

LOAD: Statement[tuple[int, int, float]] = Statement(
    "load",
    "select (select count(*)::int from pg_catalog.pg_stat_activity a where a.datid is not null), "
    "(select count(*)::int from pg_catalog.pg_class c where c.relnamespace = to_regnamespace(left('coordinator.', -1))), "
    "pg_notification_queue_usage()",
    (),
    lambda rows: (rows[0][0], rows[0][1], float(rows[0][2])),
)

SNAPSHOTS: Statement[list[Snapshot]] = Statement(
    "snapshots",
    "select case when a.backend_type = 'walsender' then 'walsender' else 'session' end, a.pid::text, "
    "coalesce(nullif(a.application_name, ''), a.usename::text), age(a.backend_xmin), "
    "case when a.backend_type = 'walsender' then a.backend_start else coalesce(a.xact_start, a.query_start) end "
    "from pg_catalog.pg_stat_activity a where a.backend_xmin is not null and a.pid <> pg_backend_pid() "
    "and (a.backend_type = 'walsender' or a.datname = current_database() and a.backend_type = 'client backend') "
    "union all select 'prepared transaction', x.gid, x.owner::text, age(x.transaction), x.prepared "
    "from pg_catalog.pg_prepared_xacts x where x.database = current_database() "
    "union all select 'replication slot', s.slot_name::text, case when s.active then 'active' else 'inactive' end, "
    "greatest(age(s.xmin), age(s.catalog_xmin)), null "
    "from pg_catalog.pg_replication_slots s where s.xmin is not null or s.catalog_xmin is not null "
    "order by 4 desc",
    (),
    lambda rows: [Snapshot(*row) for row in rows],
)

TABLES: Statement[list[TableFacts]] = Statement(
    "tables",
    "select s.relname::text, s.n_live_tup, s.n_dead_tup, "
    "coalesce(o.threshold, current_setting('autovacuum_vacuum_threshold')::float8) "
    "+ coalesce(o.factor, current_setting('autovacuum_vacuum_scale_factor')::float8) * s.n_live_tup, "
    "greatest(s.last_vacuum, s.last_autovacuum), pg_relation_size(s.relid) "
    "from pg_catalog.pg_stat_all_tables s join pg_catalog.pg_class c on c.oid = s.relid "
    "cross join lateral (select "
    "max(x.option_value::float8) filter (where x.option_name = 'autovacuum_vacuum_threshold') as threshold, "
    "max(x.option_value::float8) filter (where x.option_name = 'autovacuum_vacuum_scale_factor') as factor "
    "from pg_options_to_table(c.reloptions) x) o "
    "where c.relnamespace = to_regnamespace(left('coordinator.', -1)) and c.relkind = 'r' order by s.relname",
    (),
    lambda rows: [TableFacts(*row) for row in rows],
)

OPTIONS: Statement[dict[str, frozenset[str]]] = Statement(
    "options",
    "select c.relname::text, coalesce(c.reloptions, '{}') from pg_catalog.pg_class c "
    "where c.relnamespace = to_regnamespace(left('coordinator.', -1)) and c.relkind = 'r'",
    (),
    lambda rows: {name: frozenset(options) for name, options in rows},
)

ROUTINES: Statement[list[Routine]] = Statement(
    "routines",
    "select p.proname::text, p.prosrc, p.prosecdef from pg_catalog.pg_proc p "
    "where p.pronamespace = to_regnamespace(left('coordinator.', -1)) order by p.proname",
    (),
    lambda rows: [Routine(*row) for row in rows],
)

DEFAULT_PRIVILEGES: Statement[list[DefaultPrivilege]] = Statement(
    "default_privileges",
    "select case d.defaclobjtype when 'r' then 'tables' when 'f' then 'functions' end, "
    "case when x.grantee = 0 then 'PUBLIC' else x.grantee::regrole::text end, string_agg(x.privilege_type, ', ') "
    "from pg_catalog.pg_default_acl d join pg_catalog.pg_namespace n on n.oid = to_regnamespace(left('coordinator.', -1)) "
    "cross join lateral aclexplode(d.defaclacl) x "
    "where d.defaclrole = n.nspowner and d.defaclnamespace in (0, n.oid) and d.defaclobjtype = 'r' "
    "and x.grantee <> n.nspowner group by 1, 2 order by 1, 2",
    (),
    lambda rows: [DefaultPrivilege(*row) for row in rows],
)

# Functions that PUBLIC may no longer execute by default: the next upgrade would make some that no service can call.
HIDDEN_FUNCTIONS: Statement[bool] = Statement(
    "hidden_functions",
    "select exists (select from pg_catalog.pg_default_acl d join pg_catalog.pg_namespace n "
    "on n.oid = to_regnamespace(left('coordinator.', -1)) where d.defaclrole = n.nspowner and d.defaclnamespace = 0 "
    "and d.defaclobjtype = 'f' and not exists (select from aclexplode(d.defaclacl) x where x.grantee = 0))",
    (),
    lambda rows: bool(rows[0][0]),
)

PARTITIONS: Statement[list[PartitionFacts]] = Statement(
    "examine_partitions",
    "select p.topic, p.partition, p.sequence, p.high, p.last_message, p.cache, p.increment "
    "from coordinator.examine_partitions() p",
    (),
    lambda rows: [PartitionFacts(*row) for row in rows],
)

SEGMENTS: Statement[list[SegmentProblem]] = Statement(
    "examine_segments",
    "select s.topic, s.problem, s.segment, s.subject from coordinator.examine_segments() s",
    (),
    lambda rows: [SegmentProblem(*row) for row in rows],
)

GROUPS: Statement[list[GroupFacts]] = Statement(
    "examine_groups",
    'select g."group", g.topic, g.members, g.lag, g.parked, g.blocked, g.open, g.owned, g.partitions, g.progress_at, '
    "g.stuck_since, g.blocked_since, g.oldest_segment, g.current_segment, g.pinned_bytes from coordinator.examine_groups() g",
    (),
    lambda rows: [GroupFacts(*row) for row in rows],
)

UPKEEP: Statement[list[Upkeep]] = Statement(
    "examine_upkeep",
    "select u.problem, u.subject, u.found, u.bound, u.since, u.detail from coordinator.examine_upkeep() u",
    (),
    lambda rows: [Upkeep(*row) for row in rows],
)

PUBLISHERS: Statement[list[Publisher]] = Statement(
    "examine_publishers",
    "select p.topic, p.partition, p.pid, p.application_name, p.since from coordinator.examine_publishers() p",
    (),
    lambda rows: [Publisher(*row) for row in rows],
)
