"""The folder of an embedded server: where it is by default, what is in it, and the checks before it is used."""

from __future__ import annotations

import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from coordinator.errors import ConfigError

SCHEME = "embedded:"
# sockaddr_un holds 108 bytes on Linux and 104 on macOS, the closing NUL included.
_MAX_SOCKET_BYTES = 103
_LONGEST_SOCKET_NAME = ".s.PGSQL.65535"


@dataclass(frozen=True, slots=True)
class Layout:
    """The names in the folder of one server.

    Root's server runs as another account. Then `root` belongs to root and lets others pass (0711); `pgdata` and
    `sockets` belong to that account and are closed to all others (0700).
    """

    root: Path

    @property
    def pgdata(self) -> Path:
        """What PostgreSQL calls the data directory."""
        return self.root / "pgdata"

    @property
    def sockets(self) -> Path:
        return self.root / "s"

    @property
    def log(self) -> Path:
        return self.root / "postgres.log"

    @property
    def password(self) -> Path:
        """The superuser's password for connections over TCP; the socket needs none."""
        return self.root / "password"

    @property
    def start_lock(self) -> Path:
        """Held by the process that looks whether the server has to be started, while it does."""
        return self.root / "start.lock"

    @property
    def clients_lock(self) -> Path:
        """Held shared by every client; who gets it exclusively knows that there is none."""
        return self.root / "clients.lock"

    @property
    def keeper_lock(self) -> Path:
        """Held by the process that answers for the server; its text says whether the server is shared."""
        return self.root / "keeper.lock"

    def socket_dir(self) -> Path | None:
        """The folder for the socket, or None when this one's path is too long for a socket address."""
        length = len(os.fsencode(self.sockets / _LONGEST_SOCKET_NAME))
        return self.sockets if length <= _MAX_SOCKET_BYTES else None


def data_dir_of(dsn: str) -> Path | None:
    """Return the folder that an `embedded:` DSN names; None if the DSN names no embedded server.

    `embedded:` means the default folder of this user, `embedded:/path/to/dir` that folder.
    """
    if not dsn.startswith(SCHEME):
        return None
    named = dsn.removeprefix(SCHEME)
    # embedded:///path is what people write who think of it as a URL.
    if named.startswith("//"):
        named = named.removeprefix("//")
    return Path(named).expanduser() if named else default_data_dir()


def default_data_dir() -> Path:
    """Return the folder of this user's shared server; it need not exist.

    For root it lies where only root can make folders, and not below a temporary folder: those are cleaned by age, and
    a cleaner would take old files out of a live database. Root's home is closed to the server's account.
    """
    if os.geteuid() == 0:
        return Path("/var/lib/coordinator/embedded")
    # The XDG base directories are the user's environment by definition, no settings of ours.
    named = os.environ.get("XDG_DATA_HOME", "")
    base = Path(named) if named.startswith("/") else Path.home() / ".local" / "share"
    return base / "coordinator" / "embedded"


def prepare(data_dir: Path) -> Layout:
    """Make the folder if it is missing, and check that it is one of ours.

    Raises:
        ConfigError: If it belongs to somebody else, can be changed by others, or holds something else.
    """
    # Resolved once: the server's command line, the locks and postmaster.pid then name the same path.
    root = Path(os.path.realpath(data_dir))
    # 0711 for root: the server's account has to pass through to the folders that it owns.
    mode = 0o711 if os.geteuid() == 0 else 0o700
    try:
        for folder in reversed([root, *root.parents]):
            if not folder.exists():
                folder.mkdir(exist_ok=True)
                # Whatever the umask says: root's server has to pass through the folders that we make, too.
                folder.chmod(mode)
        facts = root.lstat()
        found = {path.name for path in root.iterdir()}
    except OSError as error:
        raise ConfigError(f"the folder {root} for the embedded server cannot be used: {error}") from error
    if facts.st_uid != os.geteuid():
        raise ConfigError(f"the folder {root} belongs to user id {facts.st_uid}, found user id {os.geteuid()}")
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(f"the folder {root} can be changed by other users (mode {stat.S_IMODE(facts.st_mode):o})")
    layout = Layout(root)
    if "PG_VERSION" in found:
        raise ConfigError(f"{root} is a data directory of PostgreSQL itself; name an empty folder, or a missing one")
    if found and layout.start_lock.name not in found:
        raise ConfigError(f"the folder {root} holds other things and no embedded server; name an empty or missing one")
    if not found:
        root.chmod(mode)
    layout.start_lock.touch(mode=0o600)
    return layout


def temporary_folder() -> Path:
    """Make a private folder in a place that other accounts can pass through."""
    base = Path(tempfile.gettempdir())
    if os.geteuid() == 0 and not _lets_others_pass(base):
        # TMPDIR of root may lie in a closed home.
        base = Path("/tmp")  # noqa: S108 - mkdtemp makes a folder of its own in it
    return Path(os.path.realpath(tempfile.mkdtemp(prefix="coordinator-", dir=base)))


def _lets_others_pass(folder: Path) -> bool:
    resolved = folder.resolve()
    return all(path.stat().st_mode & stat.S_IXOTH for path in (resolved, *resolved.parents))
