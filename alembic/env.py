"""Alembic's entry: one transaction, under a lock, no metadata, no autogenerate.

Called by `coordinator.db.schema`, which hands over its connection, or by the `alembic` command:
`alembic -x dsn=... -x schema=... upgrade head`, or with COORDINATOR_DSN and COORDINATOR_SCHEMA.
"""

import os
from logging.config import fileConfig
from typing import Any

from alembic import context
from coordinator.db.schema import VERSION_TABLE, migration, migration_epilogue, migration_prologue
from coordinator.protocol.placeholder import DEFAULT_SCHEMA


def main() -> None:
    config = context.config
    if "connection" in config.attributes:
        run(connection=config.attributes["connection"])
        return
    if config.config_file_name is not None:
        fileConfig(config.config_file_name, disable_existing_loggers=False)
    arguments = context.get_x_argument(as_dictionary=True)
    dsn = arguments.get("dsn", os.environ.get("COORDINATOR_DSN", ""))
    schema = config.attributes.get("schema") or arguments.get(
        "schema", os.environ.get("COORDINATOR_SCHEMA", DEFAULT_SCHEMA)
    )
    config.attributes["schema"] = schema  # for run_sql
    if context.is_offline_mode():
        run(dialect_name="postgresql", prologue=migration_prologue(schema))
        return
    with migration(dsn, schema) as connection:
        run(connection=connection)


def run(*, prologue: str = "", **options: Any) -> None:
    schema = context.config.attributes["schema"]
    # An open transaction is used as it is: Alembic neither commits nor begins one per revision.
    context.configure(version_table=VERSION_TABLE, version_table_schema=schema, **options)
    with context.begin_transaction():
        if prologue:
            context.static_output(prologue)
        context.run_migrations()
        # In the same transaction: nobody may find a function that was made anew without the right to call it.
        if prologue:
            context.static_output(migration_epilogue(schema))
        else:
            options["connection"].exec_driver_sql(migration_epilogue(schema), execution_options={"no_parameters": True})


main()
