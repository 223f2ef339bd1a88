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

RETENTION_UP = """
"""
RETENTION_DOWN = """
"""

RIGHTS_UP = """
"""
RIGHTS_DOWN = """
"""

VIEWS_UP = """
"""
VIEWS_DOWN = """
"""


def upgrade() -> None:
    for text in (MEMBERSHIP_UP, GROUPS_UP, RETENTION_UP, RIGHTS_UP, VIEWS_UP):
        run_sql.run_text(text)
    run_sql.run_snapshot(revision)


def downgrade() -> None:
    for text in (VIEWS_DOWN, RIGHTS_DOWN, RETENTION_DOWN, GROUPS_DOWN, MEMBERSHIP_DOWN):
        run_sql.run_text(text)
    run_sql.run_older_copies(revision)
