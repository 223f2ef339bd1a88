"""Freeze sql/ for the newest revision: alembic/snapshots/<revision>/ gets copies of what the revision changes.

    python scripts/snapshot_functions.py                    write the snapshot of the newest revision
    python scripts/snapshot_functions.py --check            exit 1 if a file in sql/ differs from its newest copy

The first revision gets everything. Later ones get functions and views that differ from their newest older copy, and
deleted.txt, a list of those that are gone; their table changes are written by hand. Copies are never edited.
"""

import argparse
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SQL = ROOT / "sql"
SNAPSHOTS = ROOT / "alembic" / "snapshots"
VERSIONS = ROOT / "alembic" / "versions"
DELETED = "deleted.txt"
REPLACEABLE = ("functions", "views")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--revision", help="the revision to write; only the newest one may be, older ones are frozen")
    parser.add_argument("--check", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    revisions = sorted(path.name.split("_")[0] for path in VERSIONS.glob("[0-9]*_*.py"))
    newest = revisions[-1]
    if arguments.check:
        problems = differences(revisions)
        print("\n".join(problems) if problems else f"sql/ equals the snapshots up to {newest}")
        return 1 if problems else 0
    if arguments.revision not in (None, newest):
        print(f"revision {arguments.revision} is frozen; the newest one is {newest}", file=sys.stderr)
        return 2
    count = write(revisions)
    print(f"{SNAPSHOTS.relative_to(ROOT) / newest}: {count} files")
    return 0


def write(revisions: list[str]) -> int:
    """Write the snapshot of the last of these revisions; return the number of copies."""
    *older, newest = revisions
    target = SNAPSHOTS / newest
    shutil.rmtree(target, ignore_errors=True)
    before, now = frozen(older), current(first=not older)
    changed = {file: text for file, text in now.items() if before.get(file) != text}
    for file, text in changed.items():
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        (target / file).write_text(text, encoding="utf-8")
    deleted = sorted(file for file in before.keys() - now.keys() if file.split("/")[0] in REPLACEABLE)
    if deleted:
        target.mkdir(parents=True, exist_ok=True)
        (target / DELETED).write_text("\n".join(deleted) + "\n", encoding="utf-8")
    return len(changed)


def differences(revisions: list[str]) -> list[str]:
    """Say in which files sql/ and the newest copies differ."""
    first = len(revisions) == 1
    copies, now = frozen(revisions), current(first=first)
    if not first:  # since the second revision the tables' files have no copies to equal
        copies = {file: text for file, text in copies.items() if file.split("/")[0] in REPLACEABLE}
    return (
        [f"sql/{file}: not in any snapshot" for file in sorted(now.keys() - copies.keys())]
        + [f"sql/{file}: missing, but in a snapshot" for file in sorted(copies.keys() - now.keys())]
        + [
            f"sql/{file}: differs from its newest snapshot"
            for file in sorted(now.keys() & copies.keys())
            if now[file] != copies[file]
        ]
    )


def current(*, first: bool) -> dict[str, str]:
    """Read sql/: text by path; the files of the tables for the first revision only."""
    folders = ("schema", *REPLACEABLE) if first else REPLACEABLE
    return {
        path.relative_to(SQL).as_posix(): path.read_text(encoding="utf-8")
        for folder in folders
        for path in sorted((SQL / folder).rglob("*.sql"))
    }


def frozen(revisions: list[str]) -> dict[str, str]:
    """Read the newest copy of each file over these revisions, oldest first, without what one of them deleted."""
    texts: dict[str, str] = {}
    for revision in revisions:
        folder = SNAPSHOTS / revision
        for path in sorted(folder.rglob("*.sql")):
            texts[path.relative_to(folder).as_posix()] = path.read_text(encoding="utf-8")
        if (folder / DELETED).exists():
            for file in (folder / DELETED).read_text(encoding="utf-8").splitlines():
                texts.pop(file, None)
    return texts


if __name__ == "__main__":
    sys.exit(main())
