"""Is the installation what sql/ makes."""

import re
from collections.abc import Mapping
from pathlib import Path

from coordinator.doctor.report import Notes, listed
from coordinator.protocol.doctor import DefaultPrivilege, Place, Routine
from coordinator.protocol.placeholder import render

_TABLE = re.compile(r"^create table coordinator\.(\w+) \((?:.*?)^\)(?: with \((.*?)\))?;", re.MULTILINE | re.DOTALL)
_FUNCTION = re.compile(
    r"create or replace function coordinator\.(\w+)\s*\(.*?^as \$\$(.*?)\$\$;", re.MULTILINE | re.DOTALL
)
_PER_TOPIC = re.compile(r"topic_\d+(_\w+)?(\.\S*)?")


def version(notes: Notes, revision: str | None, newest: str, schema: str) -> None:
    """The schema is at the newest revision that this package knows."""
    if revision is None:
        notes.skip(f"the revision: this role may not read {schema}.schema_revision; the protocol version fits")
    elif revision != newest:
        notes.warning(
            schema,
            f"the schema is at revision {revision}, this package brings {newest}",
            "coordinator db upgrade" if revision < newest else "upgrade pg-coordinator on this machine",
        )


def functions(notes: Notes, found: list[Routine], files: list[Path], schema: str) -> None:
    """Each function has the text of its file. Every role may see that."""
    bodies = {routine.name: routine.body for routine in found}
    for path in files:
        for name, body in _FUNCTION.findall(path.read_text(encoding="utf-8")):
            subject = f"function {name}"
            if name not in bodies:
                notes.error(subject, "it is missing", "coordinator db upgrade; if that finds nothing to do, restore it")
            elif bodies[name] != render(body, schema):
                notes.error(
                    subject,
                    "its text is not that of this version: somebody has replaced it",
                    "find out why, then run its file of sql/functions again as the owner: coordinator db sql prints it",
                )


def storage(notes: Notes, found: dict[str, frozenset[str]], text: str) -> None:
    """Tables that are updated often keep their fillfactor and autovacuum settings."""
    for name, options in _TABLE.findall(text):
        wanted = frozenset(option.replace(" ", "") for option in options.split(",") if option.strip())
        if name not in found:
            notes.error(f"table {name}", "it is missing", "restore the schema from a backup")
        elif found[name] != wanted:
            missing, extra = sorted(wanted - found[name]), sorted(found[name] - wanted)
            notes.warning(
                f"table {name}",
                f"its storage settings differ: wanted {listed(missing) or 'no others'}, found {listed(extra) or 'none'}",
                f"alter table {name} set ({', '.join(missing)})" if missing else f"alter table {name} reset (...)",
            )


def drift(notes: Notes, found: Mapping[tuple[str, str], str], expected: Mapping[tuple[str, str], str]) -> None:
    """Every object is as sql/ makes it, none is missing, and nothing else is in the schema but topics' tables."""
    for kind, name in sorted(expected.keys() - found.keys()):
        notes.error(
            f"{kind} {name}", "it is missing", "coordinator db upgrade; if that finds nothing to do, restore it"
        )
    for kind, name in sorted(expected.keys() & found.keys()):
        if expected[kind, name] != found[kind, name]:
            notes.error(
                f"{kind} {name}",
                f"it is not as this version makes it: {_difference(expected[kind, name], found[kind, name])}",
                "find out who has changed it and why, and change it back",
            )
    extra = [
        f"{kind} {name}" for kind, name in sorted(found.keys() - expected.keys()) if not _PER_TOPIC.fullmatch(name)
    ]
    if extra:
        notes.warning(
            "schema",
            f"it holds what is not ours: {listed(extra)}",
            "move it to a schema of its own: db downgrade base drops everything in this one",
        )


def default_privileges(notes: Notes, found: list[DefaultPrivilege], place: Place, *, functions_hidden: bool) -> None:
    """Tables and functions that the owner makes later get no surprising rights."""
    for privilege in found:
        notes.warning(
            f"{privilege.kind} of {place.schema_owner}",
            f"{privilege.grantee} gets {privilege.privileges} on every new one: payloads of each new segment included",
            f"alter default privileges for role {place.schema_owner} ... revoke ... from {privilege.grantee}; rights are "
            "given by coordinator db grants",
        )
    if functions_hidden:
        notes.warning(
            f"functions of {place.schema_owner}",
            "PUBLIC may not execute new ones: the next upgrade may make functions that no service can call",
            "after each upgrade: coordinator db grants",
        )


def _difference(wanted: str, found: str) -> str:
    for ours, theirs in zip(wanted.splitlines(), found.splitlines(), strict=False):
        if ours != theirs:
            return f"wanted {ours.strip()!r}, found {theirs.strip()!r}"
    return f"wanted {len(wanted)} characters, found {len(found)}"
