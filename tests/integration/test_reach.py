"""Where no connection can be made: where it was tried and what to look at, on both faces, never the password."""

import asyncio
import traceback

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from coordinator import AsyncCoordinator, Coordinator
from coordinator.db.reach import place_of
from coordinator.errors import UnavailableError


def refused(face, dsn):
    async def ask():
        async with AsyncCoordinator(dsn) as app:
            await app.topics()

    with pytest.raises(UnavailableError) as raised:
        asyncio.run(ask()) if face is AsyncCoordinator else Coordinator(dsn).topics()
    return raised.value


@pytest.fixture(params=[Coordinator, AsyncCoordinator])
def face(request):
    return request.param


def test_connection__nobody_listens__says_where_and_what_to_look_at(face):
    error = refused(face, "postgresql://app:hunter2@127.0.0.1:1/shop")
    assert error.detail == "tried: host 127.0.0.1, port 1, database shop, user app"
    assert "pg_isready -h 127.0.0.1 -p 1" in error.hint
    assert "hunter2" not in "".join(traceback.format_exception(error))


@pytest.mark.direct("a pooler has users and databases of its own")
@pytest.mark.parametrize("change", [{"dbname": "nowhere"}, {"user": "nobody_here"}])
def test_connection__database_or_user_is_wrong__says_where_and_what_to_look_at(face, dsn, change):
    error = refused(face, make_conninfo(dsn, password="hunter2", **change))
    told = {**conninfo_to_dict(dsn), **change}
    assert f"database {told['dbname']}, user {told['user']}" in error.detail
    assert "sslmode" in error.hint
    assert "hunter2" not in "".join(traceback.format_exception(error))


def test_place__variables_and_several_hosts__are_named(monkeypatch):
    monkeypatch.setenv("PGPORT", "6000")
    monkeypatch.setenv("PGUSER", "ada")
    assert place_of("host=a,b") == {"host": "a,b", "port": "6000", "database": "ada", "user": "ada"}
    assert place_of("")["host"] == "a local socket"
