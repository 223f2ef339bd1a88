"""A real pooler between doctor and the server."""

import pytest
from support.pgbouncer import PgBouncer, find_pgbouncer

from coordinator.doctor import Limits, examine

pytestmark = pytest.mark.skipif(find_pgbouncer() is None, reason="no pgbouncer on this machine")


@pytest.mark.parametrize(("mode", "found"), [("session", []), ("transaction", ["pooler"])])
def test_pooler__its_mode__is_seen(direct_dsn, mode, found):
    with PgBouncer(direct_dsn, mode=mode) as pooler:
        report = examine(
            pooler.through(direct_dsn), "coordinator", only=["pooler", "notify"], limits=Limits(max_notify_s=1.0)
        )
    assert [finding.check for finding in report.findings] == found
