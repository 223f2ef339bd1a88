"""What to say where no connection can be made: where it was tried, never with what password, and what to look at."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo

from coordinator.db.translate import translate
from coordinator.errors import UnavailableError


@contextmanager
def reaching(address: str) -> Iterator[None]:
    """Raise our errors for psycopg's while the body connects, which may await.

    Raises:
        UnavailableError: Nobody answers, or whoever does lets us not in; libpq has no code that would tell which.
    """
    try:
        yield
    except psycopg.Error as error:
        ours = translate(error)
        if ours is None:
            raise
        if isinstance(ours, UnavailableError):
            place = place_of(address)
            raise UnavailableError(str(ours), detail=f"tried: {_told(place)}", hint=_hint(place)) from error
        raise ours from error


def place_of(address: str) -> dict[str, str]:
    """Return host, port, database and user that are tried, with what libpq's variables and defaults add."""
    found: dict[str, Any] = {item.keyword.decode(): (item.val or b"").decode() for item in Conninfo.get_defaults()}
    found.update(conninfo_to_dict(address))
    user = str(found.get("user") or "")
    place = {
        "host": str(found.get("host") or found.get("hostaddr") or "a local socket"),
        "port": str(found.get("port") or ""),
        "database": str(found.get("dbname") or user),
        "user": user,
        "service": str(found.get("service") or ""),
    }
    return {name: value for name, value in place.items() if value}


def _told(place: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in place.items())


def _hint(place: dict[str, str]) -> str:
    port = f" -p {place['port']}" if "port" in place and "," not in place["port"] else ""
    host = place["host"]
    ready = f"pg_isready -h {host}{port}" if "," not in host and " " not in host else "pg_isready"
    return (
        f"Is a server listening there ({ready})? Are database and user those that exist on it, the password right "
        "(in the DSN, PGPASSWORD or ~/.pgpass), and sslmode what it wants? Its log says why it let nobody in."
    )
