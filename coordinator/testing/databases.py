"""A fresh database with the schema installed, cheaply: the schema is installed once, into a template."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urlencode

# Databases are made and dropped outside of any transaction and of our protocol, so the drivers in coordinator.db, which
# carry out Statements, have nothing for it.
import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from coordinator import configuration
from coordinator.db.schema import install

if TYPE_CHECKING:
    from types import TracebackType

_FIRST_WITH_STRATEGY = 150000


class Databases:
    """Makes databases on one server and drops them. Not for several threads."""

    def __init__(self, dsn: str, schema: str | None = None) -> None:
        """Take the DSN of a role that may create databases; nothing is done before the first `create`.

        Args:
            dsn: Of the server.
            schema: Where the schema is installed: as `Coordinator` finds it where it is not given.
        """
        self._dsn = dsn
        self._schema = configuration.load(dsn=dsn, schema=schema).schema()
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._template: str | None = None
        self._made: list[str] = []

    def create(self) -> str:
        """Make a database in which the schema is installed, and return its URL; takes a tenth of a second."""
        if self._template is None:
            template = self._create_from("template0")
            install(self._url(template), self._schema)
            # Closed to everybody, autovacuum included: a copy must find nobody in its template.
            self._run("alter database {} with is_template true allow_connections false", template)
            self._made.remove(template)
            self._template = template
        return self._url(self._create_from(self._template))

    def create_empty(self) -> str:
        """Make a database with nothing in it, and return its URL."""
        return self._url(self._create_from("template0"))

    def drop(self, dsn: str) -> None:
        """Drop a database that `create` or `create_empty` made; whoever is connected is cut off."""
        name = str(conninfo_to_dict(dsn)["dbname"])
        self._run("drop database {} with (force)", name)
        self._made.remove(name)

    def close(self) -> None:
        """Drop all that is left, the template included."""
        for name in list(self._made):
            self._run("drop database {} with (force)", name)
        self._made.clear()
        if self._template is not None:
            self._run("alter database {} with is_template false", self._template)
            self._run("drop database {} with (force)", self._template)
            self._template = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _create_from(self, template: str) -> str:
        name = f"coordinator_test_{secrets.token_hex(6)}"
        text = "create database {} template {}"
        if self._connect().info.server_version >= _FIRST_WITH_STRATEGY:
            # Copying files was 2 to 4 times as quick as writing every page to the WAL; 14 knows no other way.
            text += " strategy file_copy"
        self._run(text, name, template)
        self._made.append(name)
        return name

    def _run(self, text: str, *names: str) -> None:
        self._connect().execute(sql.SQL(text).format(*map(sql.Identifier, names)))

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        # Made again after a test that has restarted the server.
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self._dsn, autocommit=True)
        return self._connection

    def _url(self, name: str) -> str:
        known = {key: str(value) for key, value in conninfo_to_dict(self._dsn).items()}
        known.pop("dbname", None)
        user, password = quote(known.pop("user", ""), safe=""), quote(known.pop("password", ""), safe="")
        account = f"{user}:{password}@" if password else f"{user}@" if user else ""
        # Host and port go into the query: a socket's folder is no host name for a URL.
        return f"postgresql://{account}/{name}?{urlencode(known)}"
