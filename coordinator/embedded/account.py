"""The operating-system account that the server runs as.

PostgreSQL refuses to run as root. An ordinary user's server runs as that user; root's runs as another account, and
root keeps the folder around it, so that the server's account can't put links where root writes.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from coordinator.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

# The package of a distribution makes `postgres`; `nobody` exists everywhere.
_CANDIDATES = ("postgres", "nobody")


class PopenIdentity(TypedDict, total=False):
    """The arguments of Popen that change the identity; none of them when it stays."""

    user: int
    group: int
    extra_groups: Iterable[int]


@dataclass(frozen=True, slots=True)
class Account:
    """Whom the server runs as. `other` is False when that is the calling user."""

    uid: int
    gid: int
    other: bool

    @property
    def identity(self) -> PopenIdentity:
        if not self.other:
            return {}
        # No supplementary groups: those of root would go with it.
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def own(self, path: Path) -> None:
        """Give `path` to the account, when it is not the caller's already."""
        if self.other:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def require_reach(self, folder: Path) -> None:
        """Make sure that the server can enter `folder`. Never opens a parent folder to make it so.

        Raises:
            ConfigError: If it cannot.
        """
        if not self.other:
            return
        # Tried by the account itself, so that access lists and mount options count as well.
        reach = subprocess.run(
            ["/bin/sh", "-c", 'cd -- "$1"', "sh", str(folder)],
            check=False,
            capture_output=True,
            cwd="/",
            **self.identity,
        )
        if reach.returncode != 0:
            raise ConfigError(
                f"the server cannot enter {folder}: PostgreSQL refuses to run as root, so it runs as user "
                f"{self.name}, for whom a folder above is closed; name a folder that this user can reach, "
                "such as one below /var/lib"
            )

    @property
    def name(self) -> str:
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return str(self.uid)


def account_for(pgdata: Path) -> Account:
    """Choose the account for a server on `pgdata`, which need not exist yet.

    An existing data directory keeps its owner: another account could not read it.

    Raises:
        ConfigError: If the data directory belongs to a user that we cannot run as.
    """
    me = os.geteuid()
    try:
        owner = pgdata.stat()
    except FileNotFoundError:
        owner = None
    except PermissionError as error:
        raise ConfigError(f"the data directory {pgdata} cannot be reached by user {_name_of(me)}") from error
    if me != 0:
        if owner is not None and owner.st_uid != me:
            raise ConfigError(
                f"the data directory {pgdata} belongs to user {_name_of(owner.st_uid)}, found user {_name_of(me)}; "
                "run as its owner, or name another folder"
            )
        return Account(me, os.getegid(), other=False)
    if owner is not None and owner.st_uid != 0:
        return Account(owner.st_uid, owner.st_gid, other=True)
    for name in _CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return Account(entry.pw_uid, entry.pw_gid, other=True)
    raise ConfigError(f"PostgreSQL refuses to run as root, and none of the users {', '.join(_CANDIDATES)} exists")


def _name_of(uid: int) -> str:
    return Account(uid, 0, other=False).name
