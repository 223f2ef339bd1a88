"""Where binaries are looked for, and the copy that root's server runs from."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from coordinator.embedded import EmbeddedServer, binaries, find_binaries, major_of
from coordinator.embedded.account import Account
from coordinator.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

OTHER = Account(65534, 65534, other=True)


@pytest.fixture
def no_binaries(monkeypatch, tmp_path):
    """A machine without PostgreSQL."""
    monkeypatch.delenv("COORDINATOR_PG_BIN", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(binaries, "_WHEEL", "no_such_wheel")
    monkeypatch.setattr(binaries, "_DISTRIBUTION_TREES", tmp_path)


def fake_binaries(folder: Path, version: str) -> Path:
    folder.mkdir(parents=True)
    for name in ("postgres", "initdb"):
        (folder / name).write_text(f"#!/bin/sh\necho '{name} (PostgreSQL) {version}'\n")
        (folder / name).chmod(0o755)
    return folder


def test_find_binaries__none__names_every_way(no_binaries):
    with pytest.raises(ConfigError) as caught:
        find_binaries()
    message = str(caught.value)
    for way in ("COORDINATOR_PG_BIN", "pg-coordinator[embedded]", "pg_config", "PostgreSQL below"):
        assert way in message


def test_find_binaries__variable__comes_first(monkeypatch, tmp_path):
    folder = fake_binaries(tmp_path / "bin", "17.2 (Debian 17.2-1)")
    monkeypatch.setenv("COORDINATOR_PG_BIN", str(folder))
    assert find_binaries() == folder
    assert major_of(folder) == 17


def test_find_binaries__variable_names_an_empty_folder__says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("COORDINATOR_PG_BIN", str(tmp_path))
    with pytest.raises(ConfigError, match="without runnable postgres and initdb"):
        find_binaries()


def test_find_binaries__several__newest_first(no_binaries, monkeypatch, tmp_path):
    for version in ("9.6.1", "16.1", "15.2"):
        fake_binaries(tmp_path / version.partition(".")[0] / "bin", version)
    assert find_binaries() == tmp_path / "16" / "bin"
    assert find_binaries(15) == tmp_path / "15" / "bin"


def test_find_binaries__other_majors_only__names_them(no_binaries, tmp_path):
    folder = fake_binaries(tmp_path / "16" / "bin", "16.1")
    with pytest.raises(ConfigError, match=f"of PostgreSQL 17. Found only 16 in {folder}"):
        find_binaries(17)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's server runs as another user")
def test_readable_binaries__tree_in_a_closed_folder__runs_from_a_copy(folder, monkeypatch):
    """Also after a cleaner of temporary folders has taken a file out of the copy."""
    found = find_binaries()
    package = found.parent.parent
    closed = folder / "home"
    shutil.copytree(found.parent, closed / package.name / found.parent.name)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, closed / libraries.name)
    closed.chmod(0o700)
    bases = folder / "cache"
    bases.mkdir()
    folder.chmod(0o755)
    monkeypatch.setattr(binaries, "_COPY_BASES", (bases,))
    source = closed / package.name / found.parent.name / "bin"
    copy = binaries.readable_binaries(source, OTHER)
    assert copy.is_relative_to(bases)
    with EmbeddedServer.start(bin_dir=source) as server:
        assert server.bin_dir == copy
    (copy / "initdb").unlink()
    assert binaries.readable_binaries(source, OTHER) == copy
    assert (copy / "initdb").exists()
    assert closed.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's server runs as another user")
def test_readable_binaries__place_squatted_by_another_user__is_not_used(folder, monkeypatch):
    source = fake_binaries(folder / "closed" / "pkg" / "tree" / "bin", "16.1")
    (folder / "closed").chmod(0o700)
    bases = folder / "cache"
    bases.mkdir(mode=0o755)
    folder.chmod(0o755)
    monkeypatch.setattr(binaries, "_COPY_BASES", (bases,))
    copy = binaries.readable_binaries(source, OTHER)
    place = bases / copy.relative_to(bases).parts[0]
    for path in [place, *place.rglob("*")]:
        os.chown(path, 65534, 65534)
    with pytest.raises(ConfigError, match="no copy of it could be made"):
        binaries.readable_binaries(source, OTHER)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's server runs as another user")
def test_readable_binaries__another_process_was_quicker__leaves_its_copy_alone(folder, monkeypatch):
    """A copies, B copies and is first; A must not take B's for one with holes, and remove it under B's server."""
    source = fake_binaries(folder / "closed" / "pkg" / "tree" / "bin", "16.1")
    (folder / "closed").chmod(0o700)
    bases = folder / "cache"
    bases.mkdir()
    folder.chmod(0o755)
    monkeypatch.setattr(binaries, "_COPY_BASES", (bases,))
    copytree, quicker = shutil.copytree, []

    def slow(*arguments, **options):
        made = copytree(*arguments, **options)
        if not quicker:
            quicker.append(None)
            quicker[0] = binaries.readable_binaries(source, OTHER).stat().st_ino
        return made

    monkeypatch.setattr(shutil, "copytree", slow)
    assert binaries.readable_binaries(source, OTHER).stat().st_ino == quicker[0]
