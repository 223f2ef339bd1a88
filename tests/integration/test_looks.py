"""Looks at the membership that fail, on both shells: told, and over as soon as they work again."""

import re

from support.shell import query, wait_until


def test_looks__fail_while_heartbeats_are_answered__is_told_by_health_and_over_when_they_work(make_shell, dsn):
    """It sees no pause and no plan. Mutant: every new session counts as the database being back, so that it is never away long."""
    shell = make_shell()
    shell.subscribe(lambda _message: None)
    ((text,),) = query(dsn, "select pg_get_functiondef('coordinator.group_state(int[])'::regprocedure)")
    with shell:
        wait_until(lambda: shell.status().partitions == 2, 30)
        failing = re.sub(r"\bbegin\b", "begin raise exception 'too slow' using errcode = '57014';", text, count=1)
        query(dsn, failing)
        wait_until(lambda: [found.code for found in shell.findings()] == ["database_away"], 30)
        # It lives: another one would fare no better.
        assert not any(found.live for found in shell.findings())
        assert query(dsn, "select count(*) from coordinator.coordinators c where c.state = 'alive'") == [(1,)]
        query(dsn, text)
        wait_until(lambda: not shell.findings(), 30)
        assert shell.failure is None
