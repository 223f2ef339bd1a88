"""Connections of our own: how they are made, and whose connection a caller hands us."""

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg import sql
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolTimeout

from coordinator.db.dsn import conninfo
from coordinator.db.schema import protocol_checked
from coordinator.db.translate import translated
from coordinator.errors import ConfigError, UnavailableError

# A vanished peer is noticed within some 15 s, on an idle connection as on one that waits for an answer.
_TCP = {
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}


def options(dsn: str, connect_timeout_s: float, application_name: str) -> tuple[str, dict[str, Any]]:
    """Return conninfo and keyword arguments for a connection of ours; what the DSN says itself wins."""
    address = conninfo(dsn)
    given = psycopg.conninfo.conninfo_to_dict(address)
    ours = {**_TCP, "connect_timeout": int(connect_timeout_s), "application_name": application_name}
    return address, {name: value for name, value in ours.items() if name not in given}


def connect(dsn: str, connect_timeout_s: float, application_name: str) -> psycopg.Connection[Any]:
    """Open a connection in autocommit mode.

    Raises:
        UnavailableError: If nobody answers.
    """
    address, arguments = options(dsn, connect_timeout_s, application_name)
    with translated():
        return psycopg.connect(address, autocommit=True, **arguments)


class Pool:
    """Connections for publishing and administration, opened when first needed."""

    def __init__(
        self, dsn: str, schema: str, size: int, timeout_s: float, connect_timeout_s: float, application_name: str
    ) -> None:
        self._dsn = dsn
        self._schema = schema
        self._timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._application_name = application_name
        self._size = size
        self._pool: ConnectionPool[psycopg.Connection[Any]] | None = None

    def open(self) -> None:
        """Connect once by hand, which tells why if it fails, and check that client and schema speak the same protocol."""
        if self._pool is not None:
            return
        from coordinator.db.drive import drive  # noqa: PLC0415 - drive imports translate, not us; kept local for start-up

        with connect(self._dsn, self._connect_timeout_s, self._application_name) as connection:
            drive(protocol_checked(self._schema), connection, self._schema)
        address, arguments = options(self._dsn, self._connect_timeout_s, self._application_name)
        self._pool = ConnectionPool(
            address,
            kwargs={"autocommit": True, **arguments},
            min_size=0,
            max_size=self._size,
            timeout=self._timeout_s,
            check=ConnectionPool.check_connection,
            open=True,
            name=self._application_name,
        )

    @contextlib.contextmanager
    def connection(self) -> Iterator[psycopg.Connection[Any]]:
        """Lend a connection in autocommit mode.

        Raises:
            UnavailableError: If none is free, or none could be opened, in time.
        """
        self.open()
        assert self._pool is not None
        try:
            lent = self._pool.getconn()
        except PoolTimeout as error:
            raise UnavailableError(
                f"no connection to the database within {self._timeout_s:g} s: all {self._size} of the pool are in use, or "
                "the server does not answer"
            ) from error
        try:
            with translated(lent):
                yield lent
        finally:
            self._pool.putconn(lent)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None


class AsyncPool:
    """`Pool` for asyncio."""

    def __init__(
        self, dsn: str, schema: str, size: int, timeout_s: float, connect_timeout_s: float, application_name: str
    ) -> None:
        self._dsn = dsn
        self._schema = schema
        self._timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._application_name = application_name
        self._size = size
        self._pool: AsyncConnectionPool[psycopg.AsyncConnection[Any]] | None = None

    async def open(self) -> None:
        """`Pool.open`."""
        if self._pool is not None:
            return
        from coordinator.db.drive import adrive  # noqa: PLC0415 - as in Pool.open

        address, arguments = options(self._dsn, self._connect_timeout_s, self._application_name)
        with translated():
            connection = await psycopg.AsyncConnection.connect(address, autocommit=True, **arguments)
        async with connection:
            await adrive(protocol_checked(self._schema), connection, self._schema)
        pool: AsyncConnectionPool[psycopg.AsyncConnection[Any]] = AsyncConnectionPool(
            address,
            kwargs={"autocommit": True, **arguments},
            min_size=0,
            max_size=self._size,
            timeout=self._timeout_s,
            check=AsyncConnectionPool.check_connection,
            open=False,
            name=self._application_name,
        )
        await pool.open()
        self._pool = pool

    @contextlib.asynccontextmanager
    async def connection(self) -> Any:
        """`Pool.connection`."""
        await self.open()
        assert self._pool is not None
        try:
            lent = await self._pool.getconn()
        except PoolTimeout as error:
            raise UnavailableError(
                f"no connection to the database within {self._timeout_s:g} s: all {self._size} of the pool are in use, or "
                "the server does not answer"
            ) from error
        try:
            with translated(lent):
                yield lent
        finally:
            await self._pool.putconn(lent)

    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.close()
            self._pool = None


def callers(connection: object) -> psycopg.Connection[Any]:
    """Return the psycopg connection behind what a caller gave: psycopg's own, SQLAlchemy's or Django's.

    Raises:
        ConfigError: If there is none behind it, or it is an asynchronous one.
    """
    found = _unwrap(connection)
    if not isinstance(found, psycopg.Connection):
        raise ConfigError(
            f"connection: found {_name(connection)}, wanted a psycopg.Connection, or a SQLAlchemy session or connection or "
            "a Django connection that runs on psycopg 3"
        )
    return found


def acallers(connection: object) -> psycopg.AsyncConnection[Any]:
    """Return the psycopg connection behind what a caller of the asynchronous API gave.

    Raises:
        ConfigError: If it is none.
    """
    found = _unwrap(connection)
    if not isinstance(found, psycopg.AsyncConnection):
        raise ConfigError(f"connection: found {_name(connection)}, wanted a psycopg.AsyncConnection")
    return found


def _unwrap(connection: Any) -> object:
    """Look behind wrappers by what they offer, so that neither SQLAlchemy nor Django has to be imported."""
    for _ in range(4):
        if isinstance(connection, psycopg.BaseConnection):
            return connection
        if hasattr(connection, "ensure_connection"):  # Django
            connection.ensure_connection()
            connection = connection.connection
        elif hasattr(connection, "driver_connection"):  # SQLAlchemy's pool proxy
            connection = connection.driver_connection
        elif hasattr(connection, "connection"):  # SQLAlchemy: Session.connection(), then Connection.connection
            inner = connection.connection
            connection = inner() if callable(inner) else inner
        else:
            break
    return connection


def _name(thing: object) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def listen_statement(channel: str) -> sql.Composed:
    """LISTEN takes a name, no parameter; it is quoted."""
    return sql.SQL("listen {}").format(sql.Identifier(channel))
