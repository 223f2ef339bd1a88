"""A folder that the server's account can reach: pytest's own temporary folders are closed to it when we are root."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="coordinator-test-", dir="/tmp")).resolve()
    yield path
    shutil.rmtree(path, ignore_errors=True)
