"""Fixtures for tests of delivery: the shells behind one adapter, each test on every shell. For conftest files to import."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.adapter import SHELLS
from support.shell import TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.adapter import Shell


@pytest.fixture(params=list(SHELLS))
def make_shell(request: pytest.FixtureRequest, dsn: str) -> Iterator[Callable[..., Shell]]:
    """Make shells on the test's database, with a topic of two partitions; all are closed at the end."""
    made = []

    def make(client_id: str = "test", *, at: str = dsn, **settings: object) -> Shell:
        made.append(SHELLS[request.param](at, client_id, **settings))
        return made[-1]

    make(client_id="setup").app.create_topic(TOPIC, 2)
    yield make
    for shell in made:
        shell.close()


@pytest.fixture
def shell(make_shell: Callable[..., Shell]) -> Shell:
    """One shell whose deliveries time out after half a second."""
    return make_shell(visibility_timeout_s=0.5)
