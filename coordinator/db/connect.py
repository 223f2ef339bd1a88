"""Connections of our own: how they are made, and whose connection a caller hands us."""

import asyncio
import contextlib
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolClosed, PoolTimeout

from coordinator.db.drive import adrive, aexecute, drive, execute
from coordinator.db.dsn import conninfo
from coordinator.db.exchange import arun_for_caller, run_for_caller
from coordinator.db.pooler import pooler_found
from coordinator.db.reach import reaching
from coordinator.db.schema import protocol_checked
from coordinator.db.translate import translated
from coordinator.db.uninterrupted import uninterrupted
from coordinator.errors import ClosedError, ConfigError, PoolExhaustedError, UnavailableError
from coordinator.protocol import deliveries
from coordinator.protocol.statement import BEGIN_NAME, Statement

T = TypeVar("T")

# The pool's warnings about attempts reach the handlers of an application that has some. Without any they would stand raw on
# standard error: what came of the attempts is told by our error.
logging.getLogger("psycopg").addHandler(logging.NullHandler())

# A connection that worked this recently is lent without trying it.
_TRUSTED_S = 1.0
# For so long a pool tries to connect by itself, ever more rarely; then it is asked again. On its own it would try for five
# minutes, and be without a connection for two of them while the server is back.
_ASK_POOL_S = 2.0
_CLOSED = "the pool was closed; nothing was sent"

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
    # Whatever the DSN or PGCLIENTENCODING says: keys and headers are sent and read as they are, in UTF-8.
    return address, {name: value for name, value in ours.items() if name not in given} | {"client_encoding": "UTF8"}


def connect(
    dsn: str, connect_timeout_s: float, application_name: str, *, prepare: bool | None = False
) -> psycopg.Connection[Any]:
    """Open a connection in autocommit mode; `prepare` as Settings.prepares, None until a pooler was looked for.

    Raises:
        UnavailableError: If nobody answers.
    """
    address, arguments = options(dsn, connect_timeout_s, application_name)
    with reaching(address):
        return psycopg.connect(address, autocommit=True, prepare_threshold=_threshold(prepare), **arguments)


async def aconnect(
    dsn: str, connect_timeout_s: float, application_name: str, *, prepare: bool | None = False
) -> psycopg.AsyncConnection[Any]:
    """`connect` for asyncio."""
    address, arguments = options(dsn, connect_timeout_s, application_name)
    with reaching(address):
        return await psycopg.AsyncConnection.connect(
            address, autocommit=True, prepare_threshold=_threshold(prepare), **arguments
        )


def _threshold(prepare: bool | None) -> int | None:
    """After how many executions psycopg prepares a statement; None: never."""
    return 5 if prepare else None


def let_prepare(connection: psycopg.BaseConnection[Any], prepare: bool | None) -> None:
    """Let the driver prepare statements on a connection, now that it is known whether there is a pooler."""
    connection.prepare_threshold = _threshold(prepare)


# What a role, a database or the server has for defaults must not break what callers ask of us; what the DSN says itself stays.
_SETTINGS = """
select pg_catalog.set_config(s.name, w.value, false)
from pg_catalog.pg_settings s
join pg_catalog.jsonb_each_text(%s::jsonb) as w(name, value) on w.name = s.name
where s.source <> 'client'
"""
# The limits are for large batches, topics with many partitions, and dedup keys in somebody's open transaction.
_OURS = {
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "statement_timeout": "60s",
    "lock_timeout": "30s",
    "idle_in_transaction_session_timeout": "5s",
}
# Of handlers' transactions the one limit is the deadline of their messages.
_HANDLERS = {"default_transaction_read_only": "off", "statement_timeout": "0", "transaction_timeout": "0"}
_READ_ONLY = "25006"


def _set_up(connection: psycopg.Connection[Any], values: dict[str, str]) -> None:
    connection.execute(_SETTINGS, [json.dumps(values)])


async def _aset_up(connection: psycopg.AsyncConnection[Any], values: dict[str, str]) -> None:
    await connection.execute(_SETTINGS, [json.dumps(values)])


def _became_standby(error: Exception, *, keeps_session: bool) -> bool:
    """Tell a server that takes no writes any more: where our sessions are set to write, nothing else says read-only."""
    return keeps_session and isinstance(error, psycopg.Error) and error.sqlstate == _READ_ONLY


class Pool:
    """Connections for publishing and administration, or for handlers, opened when first needed.

    Attributes:
        keeps_session: Its sessions are set up for what callers ask of us, once, when they are made. Not for handlers, whose
            transactions have no limits of ours; and not behind a pooler, where each transaction has to say it all.
    """

    def __init__(
        self,
        dsn: str,
        schema: str,
        size: int,
        timeout_s: float,
        connect_timeout_s: float,
        application_name: str,
        *,
        prepare: bool | None = None,
        pooled: bool | None = None,
        for_handlers: bool = False,
    ) -> None:
        """`prepare`, `pooled`: as in Settings, None for what is to be found out."""
        self.keeps_session = False
        self._for_handlers = for_handlers
        self._pooled = pooled
        self._dsn = dsn
        self._schema = schema
        self._timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._application_name = application_name
        self._size = size
        self._prepare = prepare
        self._opening = threading.Lock()
        self._pool: ConnectionPool[psycopg.Connection[Any]] | None = None
        self._closed = False
        # When each connection was last seen to work, monotonic.
        self._used_s: WeakKeyDictionary[psycopg.Connection[Any], float] = WeakKeyDictionary()
        self._lent_count = 0
        # What the newest attempt to connect has failed with; empty once one has not.
        self._refusals: list[str] = []
        self._counting = threading.Lock()

    def open(self) -> None:
        """Connect once by hand, which tells why if it fails, and check that client and schema speak the same protocol."""
        if self._pool is not None:
            return
        with self._opening:
            if self._pool is not None:
                return  # type: ignore[unreachable] # another thread was first
            if self._closed:
                raise ClosedError(_CLOSED)
            with connect(self._dsn, self._connect_timeout_s, self._application_name) as connection:
                drive(protocol_checked(self._schema), connection, self._schema)
                if self._pooled is None:
                    self._pooled = drive(pooler_found(connection.info.backend_pid), connection, self._schema)
            self.keeps_session = not (self._pooled or self._for_handlers)
            address, arguments = options(self._dsn, self._connect_timeout_s, self._application_name)
            values = _HANDLERS if self._for_handlers else _OURS
            prepare = not self._pooled if self._prepare is None else self._prepare
            self._pool = ConnectionPool(
                address,
                connection_class=_noting(self._refusals),
                configure=None if self._pooled else partial(_set_up, values=values),
                kwargs={"autocommit": True, "prepare_threshold": _threshold(prepare), **arguments},
                min_size=0,
                max_size=self._size,
                timeout=self._timeout_s,
                reconnect_timeout=_ASK_POOL_S,
                open=True,
                name=self._application_name,
            )

    @contextlib.contextmanager
    def connection(self) -> Iterator[psycopg.Connection[Any]]:
        """Lend a connection in autocommit mode; what goes wrong on it is raised as our errors.

        Raises:
            PoolExhaustedError: If all are in use and none became free in time.
            UnavailableError: If none could be opened in time.
        """
        with self.lent() as lent:
            try:
                with translated(lent):
                    yield lent
            except (UnavailableError, psycopg.Error) as error:
                standby = _became_standby(error, keeps_session=self.keeps_session)
                if standby or isinstance(error, UnavailableError):
                    # Also where it is open still: on a standby it would take no write ever after.
                    lent.close()
                if standby:
                    raise UnavailableError(f"the server takes no writes: {error}") from error
                raise

    def run(self, statement: Statement[T], connection: psycopg.Connection[Any]) -> T:
        """Run a statement that a caller waits for on a connection of `connection`, in a transaction of its own."""
        if not self.keeps_session and _stands_alone(statement, connection):
            return run_for_caller(statement, connection, self._schema)
        result = execute(statement, connection, self._schema)
        if not self.keeps_session and statement.name == BEGIN_NAME:
            execute(_CALLERS_LIMITS, connection, self._schema)
        return result

    @contextlib.contextmanager
    def lent(self) -> Iterator[psycopg.Connection[Any]]:
        """`connection`, for somebody else's work: psycopg's errors pass through as they are."""
        self.open()
        pool = self._pool
        if pool is None:
            raise ClosedError(_CLOSED)
        lent = self._working(pool)
        with self._counting:
            self._lent_count += 1
        try:
            yield lent
        finally:
            with self._counting:
                self._lent_count -= 1
            self._used_s[lent] = time.monotonic()
            # Of a pool that was closed meanwhile, too: it closes the connection.
            pool.putconn(lent)

    def _working(self, pool: ConnectionPool[psycopg.Connection[Any]]) -> psycopg.Connection[Any]:
        """Get a connection that works: one that was idle for a while is tried first, which costs a round trip."""
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            try:
                lent = pool.getconn(min(_ASK_POOL_S, max(deadline_s - time.monotonic(), 0.0)))
            except PoolTimeout as error:
                if time.monotonic() < deadline_s:
                    continue
                raise _not_lent(self._lent_count, self._size, self._timeout_s, self._refusals) from error
            except PoolClosed as error:
                raise ClosedError(_CLOSED) from error
            if time.monotonic() - self._used_s.get(lent, float("-inf")) < _TRUSTED_S:
                return lent
            try:
                ConnectionPool.check_connection(lent)
            except psycopg.Error:
                lent.close()
                pool.putconn(lent)
            except BaseException:
                # A signal's: what was asked is under way there still. The pool gets its place back, or has one less for ever.
                lent.close()
                pool.putconn(lent)
                raise
            else:
                return lent

    def close(self) -> None:
        with self._opening:
            self._closed = True
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()


class AsyncPool:
    """`Pool` for asyncio."""

    def __init__(
        self,
        dsn: str,
        schema: str,
        size: int,
        timeout_s: float,
        connect_timeout_s: float,
        application_name: str,
        *,
        prepare: bool | None = None,
        pooled: bool | None = None,
        for_handlers: bool = False,
    ) -> None:
        self.keeps_session = False
        self._for_handlers = for_handlers
        self._pooled = pooled
        self._prepare = prepare
        self._dsn = dsn
        self._schema = schema
        self._timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._application_name = application_name
        self._size = size
        self._opening = asyncio.Lock()
        self._pool: AsyncConnectionPool[psycopg.AsyncConnection[Any]] | None = None
        self._closed = False
        # When each connection was last seen to work, monotonic.
        self._used_s: WeakKeyDictionary[psycopg.AsyncConnection[Any], float] = WeakKeyDictionary()
        self._lent_count = 0
        # What the newest attempt to connect has failed with; empty once one has not.
        self._refusals: list[str] = []

    async def open(self) -> None:
        """`Pool.open`."""
        if self._pool is not None:
            return
        async with self._opening:
            if self._pool is not None:
                return  # type: ignore[unreachable] # another task was first
            if self._closed:
                raise ClosedError(_CLOSED)
            async with await aconnect(self._dsn, self._connect_timeout_s, self._application_name) as connection:
                await adrive(protocol_checked(self._schema), connection, self._schema)
                if self._pooled is None:
                    self._pooled = await adrive(pooler_found(connection.info.backend_pid), connection, self._schema)
            self.keeps_session = not (self._pooled or self._for_handlers)
            address, arguments = options(self._dsn, self._connect_timeout_s, self._application_name)
            values = _HANDLERS if self._for_handlers else _OURS
            prepare = not self._pooled if self._prepare is None else self._prepare
            pool: AsyncConnectionPool[psycopg.AsyncConnection[Any]] = AsyncConnectionPool(
                address,
                connection_class=_anoting(self._refusals),
                configure=None if self._pooled else partial(_aset_up, values=values),
                kwargs={"autocommit": True, "prepare_threshold": _threshold(prepare), **arguments},
                min_size=0,
                max_size=self._size,
                timeout=self._timeout_s,
                reconnect_timeout=_ASK_POOL_S,
                open=False,
                name=self._application_name,
            )
            await pool.open()
            if self._closed:
                await uninterrupted(pool.close())  # type: ignore[unreachable] # by another task, while this one waited
                raise ClosedError(_CLOSED)
            self._pool = pool

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """`Pool.connection`."""
        async with self.lent() as lent:
            try:
                with translated(lent):
                    yield lent
            except (UnavailableError, psycopg.Error) as error:
                standby = _became_standby(error, keeps_session=self.keeps_session)
                if standby or isinstance(error, UnavailableError):
                    await lent.close()
                if standby:
                    raise UnavailableError(f"the server takes no writes: {error}") from error
                raise

    async def run(self, statement: Statement[T], connection: psycopg.AsyncConnection[Any]) -> T:
        """`Pool.run`."""
        if not self.keeps_session and _stands_alone(statement, connection):
            return await arun_for_caller(statement, connection, self._schema)
        result = await aexecute(statement, connection, self._schema)
        if not self.keeps_session and statement.name == BEGIN_NAME:
            await aexecute(_CALLERS_LIMITS, connection, self._schema)
        return result

    @contextlib.asynccontextmanager
    async def lent(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """`Pool.lent`. However often the borrower is cancelled, the connection finds its way back."""
        await self.open()
        pool = self._pool
        assert pool is not None
        lent = await self._working(pool)
        self._lent_count += 1
        try:
            yield lent
        finally:
            self._lent_count -= 1
            self._used_s[lent] = time.monotonic()
            await uninterrupted(pool.putconn(lent))

    async def _working(self, pool: AsyncConnectionPool[psycopg.AsyncConnection[Any]]) -> psycopg.AsyncConnection[Any]:
        """`Pool._working`."""
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            try:
                lent = await pool.getconn(min(_ASK_POOL_S, max(deadline_s - time.monotonic(), 0.0)))
            except PoolTimeout as error:
                if time.monotonic() < deadline_s:
                    continue
                raise _not_lent(self._lent_count, self._size, self._timeout_s, self._refusals) from error
            except PoolClosed as error:
                raise ClosedError(_CLOSED) from error
            if time.monotonic() - self._used_s.get(lent, float("-inf")) < _TRUSTED_S:
                return lent
            try:
                await AsyncConnectionPool.check_connection(lent)
            except psycopg.Error:
                await lent.close()
                await uninterrupted(pool.putconn(lent))
            except BaseException:
                await uninterrupted(pool.putconn(lent))
                raise
            else:
                return lent

    async def close(self) -> None:
        self._closed = True
        if self._pool is not None:
            pool, self._pool = self._pool, None
            await uninterrupted(pool.close())


_CALLERS_LIMITS: Statement[None] = Statement("limit_session", deliveries.CALLERS_LIMITS, (), lambda _rows: None)


def _stands_alone(statement: Statement[Any], connection: psycopg.BaseConnection[Any]) -> bool:
    """It is no part of a transaction that its flow begins."""
    return statement.name != BEGIN_NAME and connection.info.transaction_status == TransactionStatus.IDLE


def _noting(refusals: list[str]) -> type[psycopg.Connection[Any]]:
    """Return a class of connections that keeps why the newest one could not be made: a pool tells that to its log alone."""

    class Noting(psycopg.Connection[Any]):
        @classmethod
        def connect(cls, *args: Any, **arguments: Any) -> Any:
            try:
                made = super().connect(*args, **arguments)
            except psycopg.Error as error:
                refusals[:] = [" ".join(str(error).split())]
                raise
            refusals.clear()
            return made

    return Noting


def _anoting(refusals: list[str]) -> type[psycopg.AsyncConnection[Any]]:
    """`_noting` for asyncio."""

    class Noting(psycopg.AsyncConnection[Any]):
        @classmethod
        async def connect(cls, *args: Any, **arguments: Any) -> Any:
            try:
                made = await super().connect(*args, **arguments)
            except psycopg.Error as error:
                refusals[:] = [" ".join(str(error).split())]
                raise
            refusals.clear()
            return made

    return Noting


def _not_lent(lent_count: int, size: int, timeout_s: float, refusals: list[str]) -> UnavailableError:
    """Tell a pool that is too small from a server that does not answer: only the first has lent all it may."""
    if lent_count >= size:
        return PoolExhaustedError(
            f"no free connection within {timeout_s:g} s: all {size} of the pool are in use; pool_size and pool_timeout_s "
            "are settings"
        )
    return UnavailableError(
        f"no connection to the database within {timeout_s:g} s: "
        + (refusals[0] if refusals else "the server does not answer, or takes no more connections")
    )


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
    _check_encoding(found)
    return found


def acallers(connection: object) -> psycopg.AsyncConnection[Any]:
    """Return the psycopg connection behind what a caller of the asynchronous API gave.

    Raises:
        ConfigError: If it is none.
    """
    found = _unwrap(connection)
    if not isinstance(found, psycopg.AsyncConnection):
        raise ConfigError(f"connection: found {_name(connection)}, wanted a psycopg.AsyncConnection")
    _check_encoding(found)
    return found


def _check_encoding(connection: psycopg.BaseConnection[Any]) -> None:
    """The server would take what is sent in UTF-8 for something else, and store it as that."""
    encoding = connection.pgconn.parameter_status(b"client_encoding")
    if encoding not in (b"UTF8", None):
        raise ConfigError(
            f"connection: found client_encoding {encoding.decode()}, wanted UTF8, in which keys and headers are sent"
        )


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
