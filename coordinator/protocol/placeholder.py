"""The placeholder rule: how the schema's name gets into SQL; see docs/decisions/0001-schema-placeholder.md."""

import re
from functools import lru_cache

from coordinator.errors import ConfigError

DEFAULT_SCHEMA = "coordinator"

# Not part of a longer name, not a column of an alias, not quoted by hand. Inside string literals too: regclass casts.
_TOKEN = re.compile(r'(?<![\w."])coordinator\.')

# 41 characters at most: object names derived from the schema's stay below PostgreSQL's 63 bytes.
_SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,40}")

# The schema is ours alone, since a downgrade to base drops what it holds.
_SHARED_SCHEMAS = frozenset({"public", "information_schema"})


def check_schema_name(schema: str) -> None:
    """Raise ConfigError unless `schema` may be put into SQL, between double quotes, as it is."""
    if not isinstance(schema, str) or not _SCHEMA_NAME.fullmatch(schema) or schema.startswith("pg_"):  # type: ignore[redundant-expr]
        raise ConfigError(
            f"schema name {schema!r} is not usable: wanted are 1 to 41 characters of a-z, 0-9 and _, "
            "the first one no digit, not beginning with pg_"
        )
    if schema in _SHARED_SCHEMAS:
        raise ConfigError(f"schema name {schema!r} is not usable: the schema must be the coordinator's alone")


@lru_cache(maxsize=1024)
def render(text: str, schema: str) -> str:
    """Return a SQL text with every `coordinator.` replaced by the quoted schema name and a dot.

    Raises:
        ConfigError: If the schema name is not usable.

    Cost: one dictionary look-up after the first call; statement texts are constants, so the cache holds all of them.
    """
    check_schema_name(schema)
    return _TOKEN.sub(f'"{schema}".', text)
