import pytest
from support.patches import gated_gap_pass, gated_open_segment, gated_publish_many
from support.sessions import Db


@pytest.fixture
def dsn(direct_dsn):
    """Never through a pooler: schedules of sessions name their sessions, and the functions know of no pooler."""
    return direct_dsn


@pytest.fixture
def db(dsn):
    """A database with topic `t` of two partitions; functions have gates where a session can be stopped."""
    with Db(dsn, partitions=2, patches=[gated_publish_many(), gated_gap_pass(), gated_open_segment()]) as made:
        yield made
