"""A database with a topic, and doctor called on it with limits of zero: whatever there is, is a finding."""

from __future__ import annotations

import psycopg
import pytest

from coordinator import Coordinator
from coordinator.doctor import Limits, examine

TOPIC = "orders"

AT_ONCE = Limits(
    max_snapshot_age_s=0,
    max_snapshot_age_xids=0,
    max_publisher_age_s=0,
    max_idle_s=0,
    max_stuck_s=0,
    max_late_s=0,
    max_dead_rows=100,
)


@pytest.fixture
def connection(dsn):
    """The owner's."""
    with psycopg.connect(dsn, autocommit=True) as made:
        yield made


@pytest.fixture
def app(dsn):
    with Coordinator(dsn) as made:
        made.create_topic(TOPIC, 2)
        yield made


@pytest.fixture
def find(dsn):
    """Run one check and return its findings; nothing may have been left out."""

    def run(check, *, at=dsn, limits=AT_ONCE, **options):
        report = examine(at, "coordinator", only=[check], limits=limits, **options)
        assert report.skipped == ()
        assert not report.ok if report.findings else report.ok
        return list(report.findings)

    return run


@pytest.fixture
def ordinary(dsn, connection):
    """The DSN of a role that may use the schema, and nothing else."""
    role = f"ordinary_{connection.info.dbname.rpartition('_')[2]}"
    connection.execute(f"create role {role} login password 'x'")
    connection.execute(f"grant usage on schema coordinator to {role}")
    yield psycopg.conninfo.make_conninfo(dsn, user=role, password="x")
    connection.execute(f"drop owned by {role}")
    connection.execute(f"drop role {role}")
