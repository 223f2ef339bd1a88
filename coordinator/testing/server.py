"""A server for a run of tests: a container where a Docker engine has the image, else an embedded PostgreSQL.

An image is never pulled: a run of tests must not depend on a registry, or wait for one.
"""

from __future__ import annotations

import secrets
import socket
from contextlib import closing
from typing import TYPE_CHECKING, Any, Self

from coordinator.embedded import EmbeddedServer, find_binaries
from coordinator.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

DEFAULT_IMAGE = "postgres:16"
# Prepared transactions are part of several rules; a run of tests opens many connections.
TEST_SETTINGS = {"max_connections": "200", "max_prepared_transactions": "50"}
_DOCKER_TIMEOUT_S = 2


class Server:
    """A running server. Use it as a context manager, or call `stop`.

    Attributes:
        dsn: The URL of the superuser.
        description: One line that says what this is, for the head of a test report.
    """

    def __init__(self, dsn: str, description: str, stop: Callable[[], object]) -> None:
        self.dsn = dsn
        self.description = description
        self._stop = stop

    def stop(self) -> None:
        """Stop the server and remove its data."""
        self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


def start_server(
    *,
    image: str = DEFAULT_IMAGE,
    major: int | None = None,
    require_container: bool = False,
    settings: Mapping[str, str] | None = None,
) -> Server:
    """Start a server for tests.

    Args:
        image: The container's image; it must be present. It may be any that takes POSTGRES_USER, POSTGRES_PASSWORD and
            POSTGRES_DB and a command, as the official one does.
        major: Use binaries of this major, and no container.
        require_container: Fail where no container can be started, instead of falling back.
        settings: Settings of PostgreSQL, over those that the tests of coordinator need.

    Raises:
        ConfigError: If a container is required and there is no engine or image, or if no binaries are found.
        UnavailableError: If the embedded server does not start.
    """
    settings = {**TEST_SETTINGS, **(settings or {})}
    if major is not None and require_container:
        raise ConfigError("either a container or binaries of a major, found both")
    if major is not None:
        return _embedded(settings, major, "asked for by its major")
    obstacle = why_no_container(image)
    if obstacle is None:
        return _container(image, settings)
    if require_container:
        raise ConfigError(f"a container was required: {obstacle}")
    return _embedded(settings, None, f"no container: {obstacle}")


def why_no_container(image: str) -> str | None:
    """Return None if a container of `image` can be started here, else the reason why not; takes half a second."""
    try:
        import docker  # noqa: PLC0415 - only the extra "test" brings it
        import testcontainers  # noqa: F401, PLC0415 - the same
    except ImportError as error:
        return f"the package {error.name} is not installed"
    address = docker.utils.kwargs_from_env().get("base_url") or docker.constants.DEFAULT_UNIX_SOCKET
    path = address.partition("unix://")[2]
    # Looked at first: docker's client leaves its socket open when nobody answers, which is a warning in the tests.
    if path and not _answers(path):
        return f"no Docker engine answers at {path}"
    try:
        with closing(docker.from_env(timeout=_DOCKER_TIMEOUT_S)) as client:
            client.ping()
            # Asked for before the start: otherwise a pull is tried.
            client.images.get(image)
    except docker.errors.ImageNotFound:
        return f"the image {image} is not present"
    except Exception as error:  # noqa: BLE001 - docker, requests and urllib3 each bring errors of their own here
        return f"no Docker engine answers ({type(error).__name__})"
    return None


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_DOCKER_TIMEOUT_S)
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def _container(image: str, settings: Mapping[str, str]) -> Server:
    from testcontainers.community.postgres import PostgresContainer  # noqa: PLC0415 - only the extra "test" brings it
    from testcontainers.core.config import testcontainers_config  # noqa: PLC0415 - the same

    if why_no_container(testcontainers_config.ryuk_image) is not None:
        # The reaper removes containers of a killed run. Without its image at hand it would have to be pulled.
        testcontainers_config.ryuk_disabled = True
    # Typed here: the package is skipped by mypy, see pyproject.toml.
    container: Any = PostgresContainer(
        image, username="postgres", password=secrets.token_urlsafe(12), dbname="postgres", driver=None
    )
    command = ["postgres"]
    for name, value in settings.items():
        command += ["-c", f"{name}={value}"]
    container.with_command(command)
    try:
        container.start()
    except BaseException:
        # It stays otherwise: the container was made, and only its start has failed.
        container.stop()
        raise
    return Server(container.get_connection_url(), f"container of {image}", container.stop)


def _embedded(settings: Mapping[str, str], major: int | None, why: str) -> Server:
    bin_dir = find_binaries(major)
    server = EmbeddedServer.start(settings=settings, bin_dir=bin_dir)
    # immediate: the data is removed, nobody needs a shutdown checkpoint.
    return Server(server.dsn, f"embedded, binaries of {bin_dir} ({why})", lambda: server.stop("immediate"))
