"""${message}."""

from pathlib import Path

from alembic.util import load_python_file

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None

run_sql = load_python_file(Path(__file__).parents[1], "run_sql.py")


def upgrade() -> None:
    # Table changes by hand: run_sql.run_text("alter table coordinator. ..."), then the functions:
    run_sql.run_snapshot(revision)


def downgrade() -> None:
    # Drop what this revision added, by signature; then:
    run_sql.run_older_copies(revision)
    # Then take the table changes back.
