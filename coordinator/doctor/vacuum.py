"""Who keeps dead rows from being removed, and how many there are."""

from datetime import datetime

from coordinator.doctor.report import Limits, Notes, age_s, duration
from coordinator.protocol.doctor import Place, Snapshot, TableFacts

# So many times more dead rows than where autovacuum should have come.
_VACUUM_MISSED = 10


def snapshots(notes: Notes, found: list[Snapshot], place: Place, now: datetime, limits: Limits) -> None:
    """Name each session, standby, slot and prepared transaction that holds an old snapshot, oldest first."""
    for holder in found:
        age = age_s(holder.since, now)
        held = f"for {duration(age)}, since {holder.age_xids} transactions ago"
        if holder.kind == "session" and age > limits.max_snapshot_age_s:
            notes.warning(
                f"{holder.detail} (pid {holder.name})",
                f"holds a snapshot {held}; no table of the database gets rid of dead rows that are younger",
                f"find out what it does; end it with select pg_terminate_backend({holder.name})",
            )
        elif holder.kind == "prepared transaction" and age > limits.max_snapshot_age_s:
            notes.error(
                holder.name,
                f"prepared by {holder.detail} and not ended {held}; it keeps dead rows, and its locks, also over restarts",
                f"commit prepared '{holder.name}' or rollback prepared '{holder.name}', as its transaction manager says",
            )
        elif holder.kind == "walsender" and holder.age_xids > limits.max_snapshot_age_xids:
            notes.warning(
                f"{holder.detail} (pid {holder.name})",
                f"this standby's hot_standby_feedback keeps dead rows since {holder.age_xids} transactions ago",
                "end the long query on the standby",
            )
        elif holder.kind == "replication slot" and holder.age_xids > limits.max_snapshot_age_xids:
            notes.warning(
                holder.name,
                f"this {holder.detail} replication slot keeps dead rows since {holder.age_xids} transactions ago",
                "bring its standby or subscriber back, end the long query there, or drop the slot: "
                f"select pg_drop_replication_slot('{holder.name}')",
            )
    if not place.sees_all_sessions:
        notes.skip(f"sessions of other roles: {place.user} is not in pg_monitor (grant pg_monitor to {place.user})")


def dead_rows(notes: Notes, tables: list[TableFacts], now: datetime, limits: Limits) -> None:
    """Name tables in which many more rows are dead than autovacuum should leave."""
    for table in tables:
        if table.dead <= max(limits.max_dead_rows, _VACUUM_MISSED * table.vacuum_at):
            continue
        last = "never" if table.last_vacuum is None else f"{duration(age_s(table.last_vacuum, now))} ago"
        notes.warning(
            table.table,
            f"{table.dead} dead rows beside {table.live} live ones in {table.bytes} bytes; last vacuumed {last}",
            "see the checks snapshots and settings for what keeps autovacuum away, then: vacuum the table",
        )
