"""The server and the way to it."""

from collections.abc import Mapping
from datetime import datetime

from coordinator.doctor.report import Limits, Notes
from coordinator.protocol.doctor import Place

_OLDEST_MAJOR = 15
# PostgreSQL's own default.
_LONGEST_NAPTIME_S = 60

# Name, value that is wrong, severity, what it does.
_WRONG = (
    ("fsync", "off", "error", "a crash of the machine may leave a damaged database"),
    ("full_page_writes", "off", "error", "a crash of the machine may leave torn pages"),
    ("autovacuum", "off", "error", "dead rows of progress and heartbeats pile up, and every read gets slower"),
    ("track_counts", "off", "error", "autovacuum does not work without it"),
    ("synchronous_commit", "off", "warning", "acks and messages of the last moments vanish in a crash"),
    ("default_transaction_read_only", "on", "error", "this role, or database, can neither publish nor consume"),
)


def settings(notes: Notes, found: Mapping[str, str], place: Place) -> None:
    """No setting of the server breaks a promise."""
    for name, wrong, severity, effect in _WRONG:
        if found.get(name) == wrong:
            tell = notes.error if severity == "error" else notes.warning
            tell(name, f"it is {wrong}: {effect}", f"set {name} back to {'off' if wrong == 'on' else 'on'}")
    naptime_s = int(found.get("autovacuum_naptime", 0))
    if naptime_s > _LONGEST_NAPTIME_S:
        notes.warning(
            "autovacuum_naptime",
            f"autovacuum looks for work every {naptime_s} s: for so long nothing of progress and acks is cleaned",
            f"set autovacuum_naptime to {_LONGEST_NAPTIME_S} s at most; 10 s where thousands of messages a second are acked",
        )
    if place.version < _OLDEST_MAJOR * 10_000:
        notes.warning(
            "server_version",
            f"PostgreSQL {place.version // 10_000}; the oldest that is tested and supported is {_OLDEST_MAJOR}",
            "upgrade the server",
        )
    if place.encoding == "SQL_ASCII":
        notes.error(
            "server_encoding",
            "it is SQL_ASCII, in which no text has a meaning: the schema is not installed there",
            "use a database with encoding UTF8",
        )
    elif place.encoding != "UTF8":
        notes.warning(
            "server_encoding",
            f"it is {place.encoding}; keys, headers and errors that it does not have are refused",
            "use a database with encoding UTF8",
        )
    if place.in_recovery:
        notes.error(
            "recovery",
            "this server is a standby: nothing can be written",
            "add target_session_attrs=read-write and all hosts to the DSN",
        )


def load(notes: Notes, found: tuple[int, int, float], values: Mapping[str, str], limits: Limits) -> None:
    """Connections, locks and the notification queue have room."""
    connections, relations, queue = found
    most = int(values["max_connections"]) - int(values.get("superuser_reserved_connections", 0))
    if connections >= most * limits.max_connections_used:
        notes.warning(
            "max_connections",
            f"{connections} of {most} connections are in use; a consumer that must reconnect may find none",
            "see Connections in docs/operations.md: fewer processes, smaller pools, a pooler for publishers, or raise it",
        )
    locks = int(values["max_locks_per_transaction"]) * (
        int(values["max_connections"]) + int(values["max_prepared_transactions"])
    )
    if relations > locks:
        notes.warning(
            "max_locks_per_transaction",
            f"the schema has {relations} tables, indexes and sequences, the lock table room for about {locks}: a dump, an "
            "uninstall or a downgrade locks them all in one transaction and fails",
            "raise max_locks_per_transaction, or drop what is not needed",
        )
    if queue > 0.5:  # noqa: PLR2004 - PostgreSQL itself warns from there on
        notes.error(
            "notifications",
            f"the queue of NOTIFY is full to {queue:.0%}; when it is full, every COMMIT that notifies fails",
            "find the session that listens and sits in a transaction: see the check snapshots",
        )


def clock(notes: Notes, ours: datetime, theirs: datetime, round_trip_s: float, limits: Limits) -> None:
    """This machine's clock agrees with the database's; `ours` is of the middle of the round trip."""
    skew_s = (ours - theirs).total_seconds()
    if abs(skew_s) > limits.max_clock_skew_s + round_trip_s / 2:
        notes.warning(
            "clock",
            f"this machine is {abs(skew_s):.1f} s {'ahead of' if skew_s > 0 else 'behind'} the database",
            "synchronise both. Leases, deadlines and retries do not depend on it; deliver_at, and reading logs, do",
        )


def notify(notes: Notes, round_trip_s: float | None, pooler: str | None, limits: Limits) -> None:
    """A notification comes round quickly."""
    if pooler == "transaction":
        return  # told by the check pooler
    if round_trip_s is None:
        notes.error(
            "notify",
            f"no notification came within {5 * limits.max_notify_s:g} s: consumers are only woken by polling, within a second",
            "see the check load for the queue; a session that hangs in COMMIT, or a pooler, keeps notifications",
        )
    elif round_trip_s > limits.max_notify_s:
        notes.warning(
            "notify",
            f"a notification took {round_trip_s:.2f} s to come round",
            "look for a slow network, an overloaded server, or a transaction that hangs in COMMIT",
        )


def pooler(notes: Notes, found: str | None) -> None:
    """Consumers can LISTEN."""
    if found == "transaction":
        notes.warning(
            "pooler",
            "the DSN leads to a pooler in transaction mode: LISTEN does not work, and wake-ups come by polling",
            "give consumers a direct connection, or session mode; see Poolers in docs/operations.md",
        )
