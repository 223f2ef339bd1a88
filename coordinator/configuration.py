"""Where values come from: arguments, the environment, coordinator.toml, defaults, in this order; and what is wrong with them.

    dsn = "postgresql://app@localhost/shop"
    schema = "coordinator"
    client_id = "billing-1"

    [settings]
    lease_s = 20
    max_in_flight = 200

Each setting has a variable: COORDINATOR_LEASE_S for lease_s.
"""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from coordinator.errors import ConfigError
from coordinator.protocol.check import nearest
from coordinator.settings import STATIC_ID_VARIABLE, Found, Settings, allowed, find_dsn, find_schema, read, wrong

FILE_NAME = "coordinator.toml"
CONFIG_VARIABLE = "COORDINATOR_CONFIG"

_PREFIX = "COORDINATOR_"
_NAMES = ("dsn", "schema", "client_id")
# Variables that are no settings, and those of tools beside the package.
_OTHER_VARIABLES = (
    CONFIG_VARIABLE,
    "COORDINATOR_DSN",
    "COORDINATOR_SCHEMA",
    "COORDINATOR_CLIENT_ID",
    # In no file: one that several processes read would give all of them the same.
    STATIC_ID_VARIABLE,
)
_NO_SUCH_NAME = "no such name"
_OTHER_PREFIXES = ("COORDINATOR_PG_", "COORDINATOR_TEST_")


@dataclass(frozen=True, slots=True)
class Problem:
    """A value that is wrong: its name, where it stands, what was found (None: not shown) and what is allowed."""

    name: str
    source: str
    found: str | None
    allowed: str

    def __str__(self) -> str:
        if self.allowed.startswith(_NO_SUCH_NAME):
            return f"{self.name} ({self.source}): {self.allowed}"
        found = "" if self.found is None else f", found {self.found}"
        return f"{self.name} ({self.source}): wanted {self.allowed}{found}"


@dataclass(frozen=True, slots=True)
class Value:
    """A value with where it came from."""

    value: Any
    source: str


@dataclass(slots=True)
class Configuration:
    """All values in force and all that is wrong.

    Attributes:
        path: The file that was read, if there is one.
        values: By name: schema, client_id, dsn if a database is named, and each setting. Of a wrong one the default.
    """

    path: Path | None = None
    values: dict[str, Value] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def check(self) -> None:
        """Raise ConfigError with all problems, the missing database apart."""
        problems = [problem for problem in self.problems if problem.source not in ("missing", "unknown variable")]
        if problems:
            raise ConfigError("; ".join(map(str, problems)))

    def settings(self) -> Settings:
        """The settings. Raises: ConfigError, with all problems."""
        self.check()
        return Settings(**{item.name: self.values[item.name].value for item in fields(Settings)})

    def dsn(self) -> str:
        """Which database is meant. Raises: ConfigError, if none is named."""
        if "dsn" not in self.values:
            raise ConfigError(next(problem.allowed for problem in self.problems if problem.source == "missing"))
        return str(self.values["dsn"].value)

    def schema(self) -> str:
        """Its schema. Raises: ConfigError, with all problems, if its name is not usable."""
        if "schema" not in self.values:
            self.check()
        return str(self.values["schema"].value)


def load(
    path: str | os.PathLike[str] | None = None,
    *,
    dsn: str | None = None,
    schema: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Configuration:
    """Put together what is in force; wrong values are listed, not raised.

    Args:
        path: The file; else COORDINATOR_CONFIG, else coordinator.toml in the working directory if there is one.
        dsn, schema: Arguments of the call.
        environ: os.environ.

    Raises:
        ConfigError: The file was named and is not there, or is no TOML.
    """
    environment = os.environ if environ is None else environ
    found = Configuration()
    file = _read_file(found, path, environment)
    _names(found, file, environment, dsn, schema)
    table = file.pop("settings", {})
    for name in file:
        found.problems.append(_unknown(name, str(found.path), (*_NAMES, "settings")))
    if not isinstance(table, dict):
        found.problems.append(Problem("settings", str(found.path), repr(table), "a table, [settings]"))
        table = {}
    _settings(found, table, environment)
    for name in environment:
        setting = name.removeprefix(_PREFIX).lower()
        known = not name.startswith(_PREFIX) or name in _OTHER_VARIABLES or name.startswith(_OTHER_PREFIXES)
        if not known and setting not in Settings.names():
            found.problems.append(_unknown(setting, "unknown variable", Settings.names(), shown=name))
    return found


def _read_file(found: Configuration, path: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> dict[str, Any]:
    named = path if path is not None else environ.get(CONFIG_VARIABLE) or None
    file = Path(named if named is not None else FILE_NAME)
    if named is None and not file.is_file():
        return {}
    found.path = file
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"the configuration {file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the configuration {file} is no TOML: {error}") from error


def _names(
    found: Configuration, file: dict[str, Any], environ: Mapping[str, str], dsn: str | None, schema: str | None
) -> None:
    path = str(found.path)
    given: dict[str, Found] = {}
    for name in _NAMES:
        value = file.pop(name, None)
        if isinstance(value, str):
            given[name] = Found(value, path)
        elif value is not None:
            # A DSN may hold a password, whatever else is wrong with it.
            found.problems.append(Problem(name, path, None if name == "dsn" else repr(value), "a text"))
    try:
        found.values["dsn"] = Value(*find_dsn(dsn, environ, given.get("dsn")))
    except ConfigError as error:
        found.problems.append(Problem("dsn", "missing", None, str(error)))
    try:
        found.values["schema"] = Value(*find_schema(schema, environ, given.get("schema")))
    except ConfigError as error:
        source = (
            "argument" if schema is not None else "COORDINATOR_SCHEMA" if environ.get("COORDINATOR_SCHEMA") else path
        )
        found.problems.append(Problem("schema", source, None, str(error)))
    client_id = environ.get("COORDINATOR_CLIENT_ID")
    if client_id:
        found.values["client_id"] = Value(client_id, "COORDINATOR_CLIENT_ID")
    elif "client_id" in given:
        found.values["client_id"] = Value(*given["client_id"])


def _settings(found: Configuration, table: Mapping[str, Any], environ: Mapping[str, str]) -> None:
    path = str(found.path)
    for name in table:
        if name not in Settings.names():
            found.problems.append(_unknown(name, path, Settings.names()))
    for item in fields(Settings):
        variable = _PREFIX + item.name.upper()
        default = item.default if item.default is not MISSING else "auto"
        value, source = Value(default, "default"), "default"
        if environ.get(variable):
            source = variable
            value = Value(read(item.name, environ[variable]), variable)
        elif item.name in table:
            source = path
            value = Value(table[item.name], path)
        if source != "default" and wrong(item.name, value.value):
            shown = environ[variable] if source == variable else value.value
            found.problems.append(Problem(item.name, source, repr(shown), allowed(item.name)))
            value = Value(default, "default")
        found.values[item.name] = value
    try:
        Settings(**{item.name: found.values[item.name].value for item in fields(Settings)})
    except ConfigError as error:
        # Each is right by itself, and they do not go together.
        found.problems.append(Problem("settings", "together", None, str(error)))


def _unknown(name: str, source: str, known: tuple[str, ...], shown: str | None = None) -> Problem:
    return Problem(shown or name, source, None, f"{_NO_SUCH_NAME}; {nearest(name, known)}")
