"""Install, upgrade, downgrade and remove the schema; check that client and schema speak the same protocol."""

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from coordinator.db.drive import drive
from coordinator.db.dsn import conninfo
from coordinator.db.translate import translate, translated
from coordinator.errors import ConfigError, DeniedError, SchemaVersionError
from coordinator.protocol import admin, rights
from coordinator.protocol.admin import BehindSequence
from coordinator.protocol.placeholder import DEFAULT_SCHEMA, check_schema_name, render
from coordinator.protocol.statement import Flow, Statement, call

# SQLAlchemy and Alembic take a third of a second to import, and only those who migrate need them.
if TYPE_CHECKING:
    import sqlalchemy

# What this client works with, both ends included; compared to coordinator.protocol_version() at connect.
MIN_PROTOCOL = 4
MAX_PROTOCOL = 4

# Not Alembic's default name: a service's own history may be called 0001 as well, and must never be taken for ours.
VERSION_TABLE = "schema_revision"

_PACKAGE = Path(__file__).parents[1]

# Alembic keeps its context in module globals, so that two threads cannot migrate at the same time.
_one_migration = threading.Lock()


def install(dsn: str, schema: str = DEFAULT_SCHEMA) -> None:
    """Create the schema, or bring it to the newest revision; see `upgrade`."""
    upgrade(dsn, schema)


def upgrade(dsn: str, schema: str = DEFAULT_SCHEMA, revision: str = "head") -> None:
    """Bring the schema to a revision, in one transaction; several processes may do so at once, the first one works.

    Raises:
        ConfigError: If the name is not usable, the schema holds something else, or there is no such revision.
        SchemaVersionError: If the schema is newer than this client.
        DeniedError: If the role may not create the schema, or does not own it.
        UnavailableError: If the database cannot be reached.
    """
    try:
        _migrate("upgrade", dsn, schema, revision)
    except DeniedError as error:
        raise DeniedError(
            str(error),
            detail=error.detail,
            hint=f"Upgrade as the role that owns schema {schema}, or may create it: grant create on database ... to ..., "
            "or have it created with its authorization. coordinator db sql prints a script for an administrator.",
        ) from error


def grants(dsn: str, schema: str, kind: str, role: str, *, execute: bool) -> list[str]:
    """Return the statements that give a role the rights of a kind (publisher, consumer, reader, operator); run them if told to.

    What was executed is remembered, and done again by `upgrade` and by the scripts of `script`.

    Raises:
        NotFoundError: No such role.
        InvalidInputError: No such kind.
        DeniedError: Executed by another role than the owner's.
    """
    statement = rights.apply_grants(kind, role) if execute else rights.grant_statements(kind, role)
    with _connection(dsn) as connection:
        drive(protocol_checked(schema), connection, schema)
        return drive(call(statement), connection, schema)


def repair_sequences(dsn: str, schema: str, *, execute: bool) -> list[BehindSequence]:
    """Find sequences that are behind their tables, or ahead of the last segment, and set them if told to.

    Publishers and consumers must not run meanwhile. Raises: DeniedError, SchemaVersionError, UnavailableError.
    """
    with _connection(dsn) as connection:
        drive(protocol_checked(schema), connection, schema)
        return drive(call(admin.repair_sequences(execute=execute)), connection, schema)


def script(schema: str, start: str = "base", end: str = "head") -> str:
    """Return the SQL that brings a schema from one revision to another, to be run in one transaction; needs no database.

    Raises:
        SchemaVersionError: No such revision.
    """
    check_schema_name(schema)
    from alembic.config import Config  # noqa: PLC0415
    from alembic.util import CommandError  # noqa: PLC0415

    from alembic import command  # noqa: PLC0415 - see above

    written = io.StringIO()
    config = Config(stdout=io.StringIO(), output_buffer=written)
    config.set_main_option("script_location", str(alembic_dir()).replace("%", "%%"))
    config.attributes["schema"] = schema
    with _one_migration:
        try:
            command.upgrade(config, f"{start}:{end}", sql=True)
        except CommandError as error:
            raise SchemaVersionError(f"cannot write a script from {start!r} to {end!r}: {error}") from error
    return written.getvalue()


def downgrade(dsn: str, schema: str, revision: str) -> None:
    """Take the schema back to an older revision; "base" drops everything in it, messages included.

    The schema itself and its (then empty) version table stay; `uninstall` removes those too.
    """
    if current(dsn, schema) is None:
        raise SchemaVersionError(f"schema {schema!r} has no revision that could be taken back")
    _migrate("downgrade", dsn, schema, revision)


def current(dsn: str, schema: str = DEFAULT_SCHEMA) -> str | None:
    """Return the schema's revision; None if nothing is installed, or it was installed without a history."""
    with _connection(dsn) as connection:
        table = render(f"coordinator.{VERSION_TABLE}", schema)
        if _scalar(connection, f"select pg_catalog.to_regclass('{table}')") is None:
            return None
        revision = _scalar(connection, f"select max(v.version_num) from {table} v")  # noqa: S608 - checked name
        return None if revision is None else str(revision)


def revision_of(connection: psycopg.Connection[Any], schema: str) -> str | None:
    """Return the schema's revision on an open connection; None if there is none, or this role may not see it."""
    table = render(f"coordinator.{VERSION_TABLE}", schema)
    may_read = _scalar(connection, f"select has_table_privilege(to_regclass('{table}'), 'select')")
    if not may_read:
        return None
    revision = _scalar(connection, f"select max(v.version_num) from {table} v")  # noqa: S608 - checked name
    return None if revision is None else str(revision)


def newest_revision(folder: Path) -> str:
    """Return the newest revision in a folder of ours, without Alembic, which takes long to import."""
    return max(path.name.partition("_")[0] for path in (folder / "versions").glob("[0-9]*_*.py"))


def install_from_sql(dsn: str, schema: str = DEFAULT_SCHEMA) -> None:
    """Create the schema from the SQL files as they are now, without a history: it can't be upgraded later.

    Tests compare this with `upgrade`. The schema must not exist, or be empty.
    """
    with _connection(dsn) as connection:
        connection.execute(migration_prologue(schema))
        if _holds_objects(connection, schema):
            raise ConfigError(f"schema {schema!r} is not empty")
        for path in sql_files(sql_dir()):
            connection.execute(render(path.read_text(encoding="utf-8"), schema))


def uninstall(dsn: str, schema: str = DEFAULT_SCHEMA) -> None:
    """Drop the schema with everything in it, and whatever elsewhere depends on it; nothing to do if it is missing.

    Raises:
        ConfigError: If the schema holds objects but no coordinator.

    All tables are locked in one transaction: with thousands of segments, raise max_locks_per_transaction first.
    """
    with _connection(dsn) as connection:
        connection.execute(migration_prologue(schema))
        ours = _scalar(
            connection,
            render(
                "select coalesce(to_regprocedure('coordinator.protocol_version()')::oid,"
                f" to_regclass('coordinator.{VERSION_TABLE}')::oid)",
                schema,
            ),
        )
        if ours is None and _holds_objects(connection, schema):
            raise ConfigError(f"schema {schema!r} holds no coordinator; it is left as it is")
        connection.execute(f'drop schema "{schema}" cascade')


def check_protocol(version: int | None, schema: str, database: str = "") -> None:
    """Raise SchemaVersionError, with the command that helps, unless this client speaks the schema's protocol.

    Args:
        version: What coordinator.protocol_version() returned; None if there is no such function.
        schema: For the message.
        database: For the message.
    """
    where = f"schema {schema!r}"
    if version is None:
        place = f"database {database!r}" if database else "this database"
        raise SchemaVersionError(f"{where} is not installed in {place}: run coordinator db upgrade")
    if MIN_PROTOCOL <= version <= MAX_PROTOCOL:
        return
    advice = "run coordinator db upgrade" if version < MIN_PROTOCOL else "upgrade the client, pg-coordinator"
    wanted = f"{MIN_PROTOCOL} to {MAX_PROTOCOL}"
    raise SchemaVersionError(f"{where} speaks protocol {version}, this client speaks {wanted}: {advice}")


def protocol_checked(schema: str) -> Flow[int]:
    """Ask for the schema's protocol version, check it and return it; raises as `check_protocol` does."""
    # Two statements, because a call of a missing function would fail, and break a transaction that is open.
    installed, database = yield from call(
        Statement(
            "to_regprocedure",
            "select pg_catalog.to_regprocedure('coordinator.protocol_version()') is not null,"
            " pg_catalog.current_database()",
            (),
            lambda rows: rows[0],
        )
    )
    version: int | None = None
    if installed:
        version = yield from call(
            Statement("protocol_version", "select coordinator.protocol_version()", (), lambda rows: int(rows[0][0]))
        )
    check_protocol(version, schema, database)
    assert version is not None  # check_protocol has raised otherwise
    return version


def sql_dir() -> Path:
    """Return the folder of the SQL files: in the installed package, else next to it in a checkout."""
    return _carried("sql")


def alembic_dir() -> Path:
    """Return the folder of the revisions: in the installed package, else next to it in a checkout."""
    return _carried("alembic")


def sql_files(root: Path) -> list[Path]:
    """List the SQL files of a tree in the order in which they run: schema, functions, views, each by path."""
    return [path for folder in ("schema", "functions", "views") for path in sorted((root / folder).rglob("*.sql"))]


def begin_migration(connection: psycopg.Connection[Any], schema: str) -> None:
    """Wait for other migrations of this schema and create it if it is missing, in a transaction that has just begun.

    Raises:
        ConfigError: If the schema has objects but no history: somebody else's, or installed by `install_from_sql`.
    """
    connection.execute(migration_prologue(schema))
    version_table = render(f"select to_regclass('coordinator.{VERSION_TABLE}')", schema)
    if _scalar(connection, version_table) is None and _holds_objects(connection, schema):
        raise ConfigError(f"schema {schema!r} exists and is not empty, but has no {VERSION_TABLE}: use one of its own")


def migration_prologue(schema: str) -> str:
    """Return what a transaction that migrates begins with.

    Race: two processes start at once, both read "no revision" and both create the tables; the second fails. So the
    lock comes before Alembic reads the revision, in the same transaction; at READ COMMITTED the one that waited reads
    what the other has committed.
    """
    check_schema_name(schema)
    # "if not exists" would ask for the right to create schemas even where an administrator has made this one.
    return f"""
set local search_path = pg_catalog, pg_temp;
-- Functions in language sql may call others that are created after them.
set local check_function_bodies = off;
-- A short default of the role must not end the wait for another process's migration.
set local lock_timeout = 0;
set local statement_timeout = 0;
select pg_advisory_xact_lock(hashtextextended('pgcoord.migrate.{schema}', 0));
do $$
begin
    if to_regnamespace('"{schema}"') is null then
        create schema "{schema}";
    end if;
end
$$;
"""


def migration_epilogue(schema: str) -> str:
    """Return what a transaction that migrates ends with: roles are granted anew what they were granted.

    A new function may be called by everybody, and one that was dropped and made again has lost its grants.
    """
    return render(
        """
do $$
begin
    if to_regprocedure('coordinator.apply_grants(text, text)') is not null then
        perform coordinator.apply_grants();
    end if;
end
$$;
""",
        schema,
    )


@contextmanager
def migration(dsn: str, schema: str) -> "Iterator[sqlalchemy.Connection]":
    """Connect, begin, lock, and commit at the end: the transaction in which Alembic runs, here and in env.py."""
    import sqlalchemy  # noqa: PLC0415 - see above

    # A creator instead of a URL, so that everything libpq understands works: services, sockets, several hosts.
    address = conninfo(dsn)
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://", creator=lambda: _connect(address), poolclass=sqlalchemy.NullPool
    )
    try:
        with engine.connect() as connection, connection.begin():
            driver_connection = connection.connection.driver_connection
            assert isinstance(driver_connection, psycopg.Connection)
            begin_migration(driver_connection, schema)
            yield connection
    except sqlalchemy.exc.DBAPIError as error:
        if not isinstance(error.orig, psycopg.Error):
            raise
        raise (translate(error.orig) or error.orig) from error


def _migrate(command_name: str, dsn: str, schema: str, revision: str) -> None:
    check_schema_name(schema)
    from alembic.config import Config  # noqa: PLC0415
    from alembic.util import CommandError  # noqa: PLC0415

    from alembic import command  # noqa: PLC0415 - see above

    config = Config(stdout=io.StringIO())
    config.set_main_option("script_location", str(alembic_dir()).replace("%", "%%"))
    config.attributes["schema"] = schema
    with translated(), _one_migration, migration(dsn, schema) as connection:
        config.attributes["connection"] = connection
        try:
            getattr(command, command_name)(config, revision)
        except CommandError as error:
            # Alembic has no finer class. The usual cause: the schema was upgraded by a newer client.
            raise SchemaVersionError(
                f"cannot {command_name} schema {schema!r} to {revision!r}: {error}; if the schema is newer, "
                "upgrade the client, pg-coordinator"
            ) from error


def _connect(address: str) -> psycopg.Connection[Any]:
    # Nothing is prepared: through a pooler it would be missing in the next session.
    connection = psycopg.connect(address, prepare_threshold=None)
    if connection.info.parameter_status("server_encoding") == "SQL_ASCII":
        database = connection.info.dbname
        connection.close()
        raise ConfigError(
            f"database {database!r} has the encoding SQL_ASCII, in which no text has a meaning; wanted UTF8"
        )
    # Whatever the defaults of database and role: at a stricter level the snapshot would be older than the lock.
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    connection.read_only = False
    return connection


@contextmanager
def _connection(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """Connect, commit at the end or roll back, close; psycopg's errors come out as ours."""
    address = conninfo(dsn)
    with translated(), _connect(address) as connection:
        yield connection


def _scalar(connection: psycopg.Connection[Any], text: str) -> Any:
    row = connection.execute(text).fetchone()
    assert row is not None  # only queries that return one row
    return row[0]


def _holds_objects(connection: psycopg.Connection[Any], schema: str) -> bool:
    """Tell whether the schema holds relations, routines or types, our version table apart."""
    holds = _scalar(
        connection,
        f"""
        select exists (
            select from pg_class c
            where c.relnamespace = '"{schema}"'::regnamespace and c.relname not like '{VERSION_TABLE}%'
        ) or exists (
            select from pg_proc p where p.pronamespace = '"{schema}"'::regnamespace
        ) or exists (
            select from pg_type t
            where t.typnamespace = '"{schema}"'::regnamespace and t.typname not like '%{VERSION_TABLE}'
        )
        """,  # noqa: S608 - a checked name and a constant
    )
    return bool(holds)


def _carried(name: str) -> Path:
    for folder in (_PACKAGE / f"_{name}", _PACKAGE.parent / name):
        if folder.is_dir():
            return folder
    raise ConfigError(f"the folder _{name} is missing in {_PACKAGE}: install the package again")
