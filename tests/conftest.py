"""Options, markers and fixtures that every test may ask for: a server for the run, a fresh database for the test."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from support.pgbouncer import PgBouncer, find_pgbouncer

from coordinator.errors import ConfigError
from coordinator.testing.server import DEFAULT_IMAGE, start_server, why_no_container

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from coordinator.testing import Databases, Server

IMAGE = pytest.StashKey[str]()
PLAN = pytest.StashKey[str]()
_POOLED = "through PgBouncer in transaction mode"
_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 4 << 30


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("coordinator")
    group.addoption("--postgres", type=int, metavar="MAJOR", help="run on binaries of this major, such as 16")
    group.addoption("--pgbouncer", action="store_true", help="lead the tests' databases through PgBouncer")
    group.addoption("--testcontainers", action="store_true", help="run on a container; fail where there is none")


def pytest_configure(config: pytest.Config) -> None:
    # A shell that starts us in the background ignores SIGINT for us and all our children, whose Ctrl-C we test.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[IMAGE] = os.environ.get("COORDINATOR_TEST_IMAGE", DEFAULT_IMAGE)
    major, container = config.getoption("--postgres"), config.getoption("--testcontainers")
    if major is not None and container:
        raise pytest.UsageError("--postgres names binaries and --testcontainers a container: give one of them")
    if major is not None:
        config.stash[PLAN] = f"embedded server of PostgreSQL {major}, as asked"
        return
    obstacle = why_no_container(config.stash[IMAGE])
    if obstacle is not None and container:
        raise pytest.UsageError(f"--testcontainers: {obstacle}")
    chosen = (
        f"container of {config.stash[IMAGE]}"
        if obstacle is None
        else f"embedded server, whose first start may take half a minute (no container: {obstacle})"
    )
    config.stash[PLAN] = chosen

    if config.getoption("--pgbouncer"):
        if find_pgbouncer() is None:
            raise pytest.UsageError("--pgbouncer: found no pgbouncer (Debian: apt-get install pgbouncer)")
        config.stash[PLAN] += f", {_POOLED}"


def pytest_report_header(config: pytest.Config) -> str:
    return f"postgres: {config.stash[PLAN]}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Several workers are given file after file in this order (--no-loadscope-reorder): a slow one at the end would keep
    # one worker busy alone.
    slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
    items.sort(key=lambda item: item.path not in slow)
    if os.environ.get("COORDINATOR_TEST_FULL"):
        for item in items:
            # Behind a test's own limit, which counts.
            item.add_marker(pytest.mark.timeout(0))
    if config.getoption("--pgbouncer"):
        for item in items:
            marker = item.get_closest_marker("direct")
            if marker is not None:
                item.add_marker(pytest.mark.skip(reason=f"{_POOLED}: {marker.args[0]}"))


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """The server of this run, with `.dsn` of its superuser; tests that harm a server start one of their own."""
    try:
        with pytest.MonkeyPatch.context() as patch:
            # Almost each test has a database made and dropped, 400 files: in memory five times as quick as on a disk. What
            # is killed to see what is durable are servers of the tests' own, on a disk.
            if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _ROOM_BYTES:
                patch.setattr(tempfile, "tempdir", str(_MEMORY))
            started = start_server(
                image=request.config.stash[IMAGE],
                major=request.config.getoption("--postgres"),
                require_container=request.config.getoption("--testcontainers"),
            )
    except ConfigError as error:
        # Not a failure of each test: no test could run.
        pytest.exit(f"no server for the tests: {error}", returncode=pytest.ExitCode.USAGE_ERROR)
    with started:
        yield started


@pytest.fixture(scope="session")
def databases(server: Server) -> Iterator[Databases]:
    """Makes databases on the run's server; the schema is installed once, into a template."""
    # Imported here: tests without a database do not need it.
    from coordinator.testing.databases import Databases

    with Databases(server.dsn) as made:
        yield made


@pytest.fixture(scope="session")
def pooler(request: pytest.FixtureRequest, server: Server) -> Iterator[PgBouncer | None]:
    """PgBouncer in transaction mode in front of the run's server, with --pgbouncer; else None."""
    if not request.config.getoption("--pgbouncer"):
        yield None
        return
    # The tests' own connections, too: the next transaction may be on a session that has never seen the statement.
    for kind in (psycopg.Connection, psycopg.AsyncConnection):
        kind.connect.__func__.__kwdefaults__["prepare_threshold"] = None  # type: ignore[attr-defined]
    with PgBouncer(server.dsn) as made:
        yield made


@pytest.fixture
def direct_dsn(databases: Databases) -> Iterator[str]:
    """The URL of a fresh database in which the schema is installed, past any pooler; dropped after the test."""
    made = databases.create()
    yield made
    databases.drop(made)


@pytest.fixture
def dsn(direct_dsn: str, pooler: PgBouncer | None) -> str:
    """The URL of a fresh database in which the schema is installed; dropped after the test."""
    return direct_dsn if pooler is None else pooler.through(direct_dsn)


@pytest.fixture
def empty_dsn(databases: Databases, pooler: PgBouncer | None) -> Iterator[str]:
    """The URL of a fresh database without the schema; dropped after the test."""
    made = databases.create_empty()
    yield made if pooler is None else pooler.through(made)
    databases.drop(made)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Make what a test has logged sendable: the channel between workers takes no lone surrogates, and some tests log them."""
    report = yield
    report.sections = [
        (name, text.encode("utf-8", "backslashreplace").decode("utf-8")) for name, text in report.sections
    ]
    return report
