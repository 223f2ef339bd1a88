"""The server and the way to it. What no server shows at will is told to the check as a fact."""

from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from support.proxy import Fault, Proxy
from support.shell import wait_until

from coordinator.db.schema import install
from coordinator.doctor import Limits, examine
from coordinator.doctor import server as checks
from coordinator.doctor.report import Notes
from coordinator.errors import ConfigError, UnavailableError
from coordinator.protocol.doctor import Place

PLACE = Place("me", "shop", "UTF8", 160000, False, "me", True, True, True)
GOOD = {
    "max_connections": "100",
    "superuser_reserved_connections": "3",
    "max_locks_per_transaction": "64",
    "max_prepared_transactions": "0",
}


def told(check, *facts):
    notes = Notes("check")
    check(notes, *facts)
    return notes.findings


@pytest.mark.direct("a default of the database holds for new sessions")
@pytest.mark.parametrize(("name", "value"), [("synchronous_commit", "off"), ("default_transaction_read_only", "on")])
def test_setting__wrong_for_the_database__is_found(dsn, find, connection, name, value):
    connection.execute(f"alter database {connection.info.dbname} set {name} = {value}")
    (finding,) = find("settings")
    assert finding.subject == name


@pytest.mark.parametrize("name", ["autovacuum", "track_counts", "fsync", "full_page_writes"])
def test_setting__of_the_server_is_off__is_an_error(find, connection, name):
    try:
        connection.execute(f"alter system set {name} = off")
        connection.execute("select pg_reload_conf()")
        (finding,) = wait_until(lambda: find("settings"), 30)
        assert (finding.subject, finding.severity) == (name, "error")
    finally:
        connection.execute(f"alter system reset {name}")
        connection.execute("select pg_reload_conf()")
        wait_until(lambda: not find("settings"), 30)


def test_autovacuum__looks_seldom__is_found():
    (finding,) = told(checks.settings, {"autovacuum_naptime": "3600"}, PLACE)
    assert (finding.subject, finding.severity) == ("autovacuum_naptime", "warning")
    assert told(checks.settings, {"autovacuum_naptime": "60"}, PLACE) == []


def test_encoding__not_utf8__is_found(server):
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("drop database if exists doctor_latin1")
        connection.execute(
            "create database doctor_latin1 template template0 encoding 'LATIN1' lc_collate 'C' lc_ctype 'C'"
        )
        try:
            at = psycopg.conninfo.make_conninfo(server.dsn, dbname="doctor_latin1")
            install(at)
            (finding,) = examine(at, "coordinator", only=["settings"]).findings
            assert "LATIN1" in finding.found
        finally:
            connection.execute("drop database doctor_latin1 with (force)")


def test_encoding__sql_ascii__is_refused_in_words(server):
    """`db upgrade` ended with a TypeError of SQLAlchemy's, and doctor recommended it."""
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("drop database if exists doctor_ascii")
        connection.execute(
            "create database doctor_ascii template template0 encoding 'SQL_ASCII' lc_collate 'C' lc_ctype 'C'"
        )
        try:
            with pytest.raises(ConfigError, match=r"'doctor_ascii' has the encoding SQL_ASCII.*wanted UTF8"):
                install(psycopg.conninfo.make_conninfo(server.dsn, dbname="doctor_ascii"))
        finally:
            connection.execute("drop database doctor_ascii with (force)")
    (finding,) = told(checks.settings, {}, PLACE._replace(encoding="SQL_ASCII"))
    assert (finding.subject, finding.severity) == ("server_encoding", "error")


def test_server__too_old_or_a_standby__is_found():
    assert [item.subject for item in told(checks.settings, {}, PLACE._replace(version=140012))] == ["server_version"]
    assert [item.subject for item in told(checks.settings, {}, PLACE._replace(in_recovery=True))] == ["recovery"]


def test_connections__nearly_all_in_use__is_found(find):
    assert [item.subject for item in find("load", limits=Limits(max_connections_used=0.0))] == ["max_connections"]
    assert find("load", limits=Limits()) == []


def test_locks__fewer_than_tables__is_found():
    assert told(checks.load, (1, 6400, 0.0), GOOD, Limits()) == []
    (finding,) = told(checks.load, (1, 6401, 0.0), GOOD, Limits())
    assert "6401" in finding.found


def test_notification_queue__more_than_half_full__is_an_error():
    assert told(checks.load, (1, 1, 0.5), GOOD, Limits()) == []
    (finding,) = told(checks.load, (1, 1, 0.51), GOOD, Limits())
    assert (finding.subject, finding.severity) == ("notifications", "error")


@pytest.mark.parametrize("hours", [-1, 1])
def test_clock__of_this_machine_is_wrong__is_found(find, hours):
    (finding,) = find("clock", clock=lambda: datetime.now(UTC) + timedelta(hours=hours))
    assert f"{'ahead of' if hours > 0 else 'behind'} the database" in finding.found


def test_clock__slow_round_trip__is_no_skew(dsn):
    with Proxy(dsn) as proxy:
        proxy.put(Fault(delay_s=0.3), "coordinator doctor")
        assert examine(proxy.dsn, "coordinator", only=["clock"], limits=Limits(max_clock_skew_s=0.05)).ok


@pytest.mark.direct("a listener needs a session")
def test_notification__comes_late__is_found(dsn):
    with Proxy(dsn) as proxy:
        proxy.put(Fault(delay_s=0.2), "coordinator doctor")
        (finding,) = examine(proxy.dsn, "coordinator", only=["notify"], limits=Limits(max_notify_s=0.1)).findings
        assert finding.severity == "warning"


def test_notification__never_comes__is_an_error():
    (finding,) = told(checks.notify, None, None, Limits())
    assert finding.severity == "error"


def test_pooler__in_transaction_mode__is_found():
    assert told(checks.pooler, None) == told(checks.pooler, "session") == []
    (finding,) = told(checks.pooler, "transaction")
    assert "LISTEN" in finding.found


def test_pooler__none__is_seen_as_none(direct_dsn):
    from coordinator.db.connect import connect
    from coordinator.db.probe import pooler_between

    with connect(direct_dsn, 5, "one") as one, connect(direct_dsn, 5, "two") as two:
        assert pooler_between(one, two) is None


def test_database__away__is_unavailable():
    with pytest.raises(UnavailableError):
        examine("postgresql://127.0.0.1:1/nobody", "coordinator")
