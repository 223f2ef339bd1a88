"""The list of checks, and what runs them."""

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, TypeVar

from coordinator.db import catalogue, probe
from coordinator.db.blockers import blockers
from coordinator.db.connect import connect
from coordinator.db.drive import drive, execute
from coordinator.db.schema import alembic_dir, newest_revision, protocol_checked, revision_of, sql_dir, sql_files
from coordinator.db.translate import translated
from coordinator.doctor import groups, installation, log, server, vacuum
from coordinator.doctor.report import Limits, Notes, Report
from coordinator.errors import CoordinatorError, DeniedError, SchemaVersionError
from coordinator.model import BlockedClaim
from coordinator.protocol import doctor as asked
from coordinator.protocol.groups import stuck_claims
from coordinator.protocol.statement import Statement

T = TypeVar("T")

_APPLICATION = "coordinator doctor"


@dataclass(slots=True, weakref_slot=True)
class _Where:
    """How to get there, for those who need a second connection."""

    dsn: str
    schema: str
    connect_timeout_s: float

    def connect(self) -> Any:
        return connect(self.dsn, self.connect_timeout_s, _APPLICATION, prepare=False)


class _Patient:
    """Who is examined. Facts that several checks need are read once."""

    def __init__(self, where: _Where, connection: Any, limits: Limits, clock: Callable[[], datetime]) -> None:
        self.where = where
        self.schema = where.schema
        self.connection = connection
        self.limits = limits
        self.clock = clock

    def ask(self, statement: Statement[T]) -> T:
        with translated(self.connection):
            return execute(statement, self.connection, self.schema)

    @cached_property
    def place(self) -> asked.Place:
        return self.ask(asked.PLACE)

    @cached_property
    def now(self) -> datetime:
        return self.ask(asked.NOW)

    @cached_property
    def settings(self) -> dict[str, str]:
        return self.ask(asked.SETTINGS)

    @cached_property
    def groups(self) -> list[asked.GroupFacts]:
        return self.ask(asked.GROUPS)

    @cached_property
    def upkeep(self) -> list[asked.Upkeep]:
        return self.ask(asked.UPKEEP)

    @cached_property
    def pooler(self) -> str | None:
        with self.where.connect() as second, translated():
            return probe.pooler_between(self.connection, second)


def _version(patient: _Patient, notes: Notes) -> None:
    with translated(patient.connection):
        revision = revision_of(patient.connection, patient.schema)
    installation.version(notes, revision, newest_revision(alembic_dir()), patient.schema)


def _functions(patient: _Patient, notes: Notes) -> None:
    files = [path for path in sql_files(sql_dir()) if "functions" in path.parts]
    installation.functions(notes, patient.ask(asked.ROUTINES), files, patient.schema)


def _storage(patient: _Patient, notes: Notes) -> None:
    text = "".join(path.read_text("utf-8") for path in sorted((sql_dir() / "schema").glob("*.sql")))
    installation.storage(notes, patient.ask(asked.OPTIONS), text)


def _drift(patient: _Patient, notes: Notes) -> None:
    if patient.place.in_recovery or not patient.place.may_create:
        notes.skip(
            f"tables, columns, indexes and views: {patient.place.user} may not create a schema in database "
            f"{patient.place.database}, to compare with one that is rolled back; ask as its owner"
        )
        return
    with translated(patient.connection):
        found = catalogue.read(patient.connection, patient.schema)
        installation.drift(notes, found, catalogue.expected(patient.connection))


def _default_privileges(patient: _Patient, notes: Notes) -> None:
    found, hidden = patient.ask(asked.DEFAULT_PRIVILEGES), patient.ask(asked.HIDDEN_FUNCTIONS)
    installation.default_privileges(notes, found, patient.place, functions_hidden=hidden)


def _settings(patient: _Patient, notes: Notes) -> None:
    server.settings(notes, patient.settings, patient.place)


def _load(patient: _Patient, notes: Notes) -> None:
    server.load(notes, patient.ask(asked.LOAD), patient.settings, patient.limits)


def _clock(patient: _Patient, notes: Notes) -> None:
    patient.ask(asked.NOW)  # the first one is slower
    before, started_s = patient.clock(), time.monotonic()
    theirs = patient.ask(asked.NOW)
    round_trip_s = time.monotonic() - started_s
    server.clock(notes, before + (patient.clock() - before) / 2, theirs, round_trip_s, patient.limits)


def _notify(patient: _Patient, notes: Notes) -> None:
    with patient.where.connect() as listener, translated():
        found = probe.notify_round_trip_s(listener, patient.connection, 5 * patient.limits.max_notify_s)
    server.notify(notes, found, patient.pooler, patient.limits)


def _pooler(patient: _Patient, notes: Notes) -> None:
    server.pooler(notes, patient.pooler)


def _snapshots(patient: _Patient, notes: Notes) -> None:
    vacuum.snapshots(notes, patient.ask(asked.SNAPSHOTS), patient.place, patient.now, patient.limits)


def _dead_rows(patient: _Patient, notes: Notes) -> None:
    vacuum.dead_rows(notes, patient.ask(asked.TABLES), patient.now, patient.limits)


def _sequences(patient: _Patient, notes: Notes) -> None:
    log.sequences(notes, patient.ask(asked.PARTITIONS))


def _segments(patient: _Patient, notes: Notes) -> None:
    log.segments(notes, patient.ask(asked.SEGMENTS))


def _publishers(patient: _Patient, notes: Notes) -> None:
    log.publishers(notes, patient.ask(asked.PUBLISHERS), patient.now, patient.limits)


def _upkeep(patient: _Patient, notes: Notes) -> None:
    log.upkeep(notes, patient.upkeep, patient.now, patient.limits)


def _unused(patient: _Patient, notes: Notes) -> None:
    groups.unused(notes, patient.groups, patient.now, patient.limits)


def _stuck(patient: _Patient, notes: Notes) -> None:
    groups.stuck(notes, patient.groups, patient.now, patient.limits)


def _locked(patient: _Patient, notes: Notes) -> None:
    found = []
    for claim in patient.ask(stuck_claims(None)):
        # Closed, and not committed: it waits for the row still.
        with closing(patient.where.connect()) as probe, translated():
            holders, _ = blockers(patient.connection, probe, patient.schema, claim.key)
            # A server does not see that its client has gone while it waits: the next who asks would find this one.
            probe.cancel_safe()
        owner = claim.owner
        found.append(BlockedClaim(claim.group, claim.topic, claim.key.partition, owner, tuple(holders)))
    groups.locked(notes, found, patient.limits)


def _blocked(patient: _Patient, notes: Notes) -> None:
    groups.blocked(notes, patient.groups, patient.now, patient.limits)


def _letters(patient: _Patient, notes: Notes) -> None:
    groups.letters(notes, patient.upkeep, patient.limits)


CHECKS: Mapping[str, Callable[[_Patient, Notes], None]] = {
    "version": _version,
    "functions": _functions,
    "storage": _storage,
    "drift": _drift,
    "privileges": _default_privileges,
    "settings": _settings,
    "load": _load,
    "clock": _clock,
    "pooler": _pooler,
    "notify": _notify,
    "snapshots": _snapshots,
    "dead-rows": _dead_rows,
    "sequences": _sequences,
    "segments": _segments,
    "publishers": _publishers,
    "upkeep": _upkeep,
    "unused-groups": _unused,
    "stuck": _stuck,
    "locked-claims": _locked,
    "blocked-keys": _blocked,
    "dead-letters": _letters,
}


def examine(
    dsn: str,
    schema: str,
    *,
    only: Collection[str] = (),
    without: Collection[str] = (),
    limits: Limits | None = None,
    connect_timeout_s: float = 10.0,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Report:
    """Run the checks, each by itself; where the schema is missing or of another protocol, that is the only finding.

    Args:
        dsn: Where; the role needs the right to use the schema, and sees more as its owner and in pg_monitor.
        schema: Its name.
        only: Names of checks, see CHECKS; empty: all.
        without: Names of checks to leave out.
        limits: From where on something is a finding.
        connect_timeout_s: For each connection.
        clock: This machine's; compared with the database's.

    Raises:
        UnavailableError: The database cannot be reached.
    """
    where = _Where(dsn, schema, connect_timeout_s)
    chosen = [name for name in CHECKS if (not only or name in only) and name not in without]
    with where.connect() as connection:
        patient = _Patient(where, connection, limits or Limits(), clock)
        stopped = _no_schema(patient)
        if stopped is not None:
            return stopped
        done = []
        for name in chosen:
            notes = Notes(name)
            try:
                CHECKS[name](patient, notes)
            except DeniedError as error:
                notes.skip(f"{patient.place.user} may not see it: {error}")
            except CoordinatorError as error:
                if connection.closed:
                    raise
                notes.skip(str(error))
            except Exception as error:  # one broken check breaks no other
                if connection.closed:
                    raise
                notes.error(name, f"the check failed: {error}", "report it: this is a bug, or a damaged schema")
            done.append(notes)
    return Report(
        tuple(chosen),
        tuple(finding for notes in done for finding in notes.findings),
        tuple(skipped for notes in done for skipped in notes.skipped),
    )


def _no_schema(patient: _Patient) -> Report | None:
    notes = Notes("version")
    if patient.place.schema_owner is not None and not patient.place.may_use:
        notes.error(
            patient.schema,
            f"the role {patient.place.user} may not use the schema",
            f"grant usage on schema {patient.schema} to {patient.place.user}, or coordinator db grants",
        )
    else:
        try:
            drive(protocol_checked(patient.schema), patient.connection, patient.schema)
        except SchemaVersionError as error:
            notes.error(patient.schema, str(error).partition(": ")[0], str(error).partition(": ")[2])
    return Report(("version",), tuple(notes.findings), ()) if notes.findings else None
