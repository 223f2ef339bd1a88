"""The server that tests get, and their databases."""

from __future__ import annotations

import os

import psycopg
import pytest

from coordinator import Coordinator
from coordinator.errors import ConfigError
from coordinator.testing import DEFAULT_IMAGE, Databases, start_server
from coordinator.testing.server import why_no_container

IMAGE = os.environ.get("COORDINATOR_TEST_IMAGE", DEFAULT_IMAGE)


def settings(dsn: str, *names: str) -> list[str]:
    with psycopg.connect(dsn) as connection:
        return [connection.execute("select current_setting(%s)", [name]).fetchone()[0] for name in names]


def test_start_server__major__takes_binaries_and_the_settings_of_tests(server):
    with psycopg.connect(server.dsn) as connection:
        major = connection.info.server_version // 10000
    try:
        started = start_server(major=major)
    except ConfigError:
        pytest.skip(f"no binaries of {major} here, the run's server is a container")
    with started:
        assert settings(started.dsn, "max_connections", "max_prepared_transactions") == ["200", "50"]
        assert "embedded" in started.description


def test_start_server__missing_image__falls_back_and_says_why():
    with start_server(image="coordinator-no-such-image:1") as server:
        assert "no container" in server.description
        assert settings(server.dsn, "fsync") == ["on"]


def test_start_server__container_required_and_no_image__fails():
    with pytest.raises(ConfigError, match="a container was required"):
        start_server(image="coordinator-no-such-image:1", require_container=True)


@pytest.mark.docker
def test_start_server__engine_with_image__runs_a_container():
    obstacle = why_no_container(IMAGE)
    if obstacle is not None:
        pytest.skip(f"no container of {IMAGE}: {obstacle}")
    with start_server(image=IMAGE, require_container=True, settings={"max_connections": "123"}) as server:
        assert IMAGE in server.description
        assert settings(server.dsn, "max_connections", "max_prepared_transactions") == ["123", "50"]


def test_databases__two__are_apart_and_have_the_schema(server):
    with Databases(server.dsn) as databases:
        first, second = databases.create(), databases.create()
        with psycopg.connect(first) as connection:
            connection.execute("create table here (n int)")
            assert connection.execute("select to_regnamespace('coordinator') is not null").fetchone() == (True,)
        with psycopg.connect(second) as connection:
            assert connection.execute("select to_regclass('here')").fetchone() == (None,)


def test_databases__closed__leaves_none_on_the_server(server):
    query = "select datname from pg_database order by datname"
    with psycopg.connect(server.dsn) as connection:
        before = connection.execute(query).fetchall()
        connection.commit()
        with Databases(server.dsn) as databases:
            databases.create()
            databases.drop(databases.create_empty())
        assert connection.execute(query).fetchall() == before


def test_databases__another_schema_is_configured__have_it(server, monkeypatch):
    """As everywhere: a Coordinator on such a database would not find its schema."""
    monkeypatch.setenv("COORDINATOR_SCHEMA", "shop_log")
    with Databases(server.dsn) as databases, Coordinator(databases.create()) as app:
        app.create_topic("orders")
        assert [topic.name for topic in app.topics()] == ["orders"]
