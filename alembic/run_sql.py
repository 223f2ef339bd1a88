"""What revisions are made of: run one SQL file, or the frozen copies of a revision.

Revisions load this file by path, since this folder is no package: an `__init__.py` would make it shadow the installed
alembic library.
"""

from pathlib import Path

from alembic import context, op
from coordinator.db.schema import sql_files
from coordinator.protocol.placeholder import render

SNAPSHOTS = Path(__file__).parent / "snapshots"


def run_text(text: str) -> None:
    """Run SQL with the schema's name put in; any number of statements, `%` and `:word` mean nothing special."""
    rendered = render(text, context.config.attributes["schema"])
    if context.is_offline_mode():
        context.static_output(rendered)
    else:
        op.get_bind().exec_driver_sql(rendered, execution_options={"no_parameters": True})


def run_file(path: Path) -> None:
    run_text(path.read_text(encoding="utf-8"))


def run_snapshot(revision: str) -> None:
    """Run all frozen copies of a revision: for `upgrade`."""
    for path in sql_files(SNAPSHOTS / revision):
        run_file(path)


def run_older_copies(revision: str) -> None:
    """Run, for each file that the revision changed or deleted, the newest older copy: for `downgrade`.

    What the revision added has none; the revision drops it by hand, by signature. It also drops by hand, before this
    call, what `create or replace` could not change back.
    """
    files = [path.relative_to(SNAPSHOTS / revision) for path in sql_files(SNAPSHOTS / revision)]
    deleted = SNAPSHOTS / revision / "deleted.txt"
    if deleted.exists():
        files += [Path(line) for line in deleted.read_text(encoding="utf-8").splitlines()]
    older = sorted((folder for folder in SNAPSHOTS.iterdir() if folder.name < revision), reverse=True)
    for file in files:
        copies = (folder / file for folder in older)
        newest = next((copy for copy in copies if copy.exists()), None)
        if newest is not None:
            run_file(newest)
