"""Settings with their units, checked once, where they are made; the only reader of environment variables."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal, NamedTuple, TypeAlias, cast, get_args

from coordinator.errors import ConfigError
from coordinator.protocol.placeholder import DEFAULT_SCHEMA, check_schema_name

DSN_VARIABLES = ("COORDINATOR_DSN", "DATABASE_URL")
SCHEMA_VARIABLE = "COORDINATOR_SCHEMA"
STATIC_ID_VARIABLE = "COORDINATOR_STATIC_ID"
POOLER_VARIABLE = "COORDINATOR_POOLER"
# Any of these says that the user has told libpq where to go.
LIBPQ_VARIABLES = ("PGHOST", "PGHOSTADDR", "PGSERVICE", "PGDATABASE")

EMBEDDED = "embedded:"

# What libpq takes for "as the variables and the defaults say".
_LIBPQ_DEFAULTS = "postgresql://"
_ORDER = "the argument, COORDINATOR_DSN, DATABASE_URL, dsn in coordinator.toml, libpq's PGHOST, PGSERVICE, PGDATABASE"

# What is between us and the server. "auto": looked at when connecting; a pooler that is found counts as "transaction".
Pooler: TypeAlias = Literal["auto", "none", "session", "transaction"]

_ALL_CPU = 100
_MAX_PORT = 65535
_MAX_STATIC_ID_CHARS = 200


class Found(NamedTuple):
    """A value with where it came from, for `config show`."""

    value: str
    source: str


def _pooler_named() -> Pooler:
    return cast("Pooler", os.environ.get(POOLER_VARIABLE) or "auto")


@dataclass(frozen=True, slots=True)
class Settings:
    """How a coordinator behaves; seconds, bytes and counts as the names say.

    Attributes:
        lease_s: How long the process counts as alive without a heartbeat.
        heartbeat_s: Pause between heartbeats.
        self_fence_margin_s: Nothing is started in the last part of a lease.
        membership_poll_s: Pause between looks at the groups' membership, when no notification comes.
        rebalance_debounce_s: A plan waits until nobody has joined for so long, at most five times that. It does not wait where
            somebody has only gone.
        hand_over_margin_s: A partition that its owner has not handed over for drain_timeout_s and so much more is taken by force.
        static_grace_s: How long the place of a process with a static id is kept after it has left.
        end_blockers: End database sessions of our own role that hold a claim which nobody alive owns; else they are only named.
        visibility_timeout_s: From a hand-over to the moment when an unsettled delivery is taken back.
        prefetch: The most messages read ahead per partition; the window adapts below it.
        prefetch_bytes: The most payload bytes read ahead per partition.
        max_in_flight, max_in_flight_bytes: Deliveries of the whole coordinator at the same time, and their payloads. A failure
            that is not written yet counts as one.
        pause_above_cpu: Percent of the machine's CPU above which nothing new is started; None: never.
        max_holes: Runs of unresolved gaps, or of what is not settled, per partition at which fetching stops.
        max_parked: Messages that wait in the retries table, per partition, at which fetching stops.
        linger_s: How long an ack may wait for company before it is written alone; where round trips take long, twice as long as
            the last one took, up to twenty times this.
        poll_max_s: The longest pause between polls when nothing happens.
        metrics_port: Where `run` serves metrics and health over HTTP; 0: any free port; None: nowhere.
        metrics_host: The address for it; "0.0.0.0" for all of this machine's.
        listen: Use LISTEN for wake-ups; polling is correct alone.
        pooler: What the DSN leads to: "none" (the server itself), "session" (a pooler that keeps a session for each client),
            "transaction" (one that does not), "auto" (found out). COORDINATOR_POOLER says it where nothing is given here.
        drain_timeout_s: How long a stop waits for handlers.
        commit_timeout_s: How long a confirmed ack waits for its COMMIT, reconnects included.
        connect_timeout_s: For one attempt to connect.
        round_trip_timeout_s: For one round trip of the coordinator's own; after it the connection is given up.
        prepare: Let the driver prepare statements. None: unless a pooler may lend each transaction another session.
        pool_size: Connections for publishing and administration, opened when needed.
        pool_timeout_s: How long a publish waits for one of them.
    """

    lease_s: float = 10.0
    heartbeat_s: float = 3.0
    self_fence_margin_s: float = 1.5
    membership_poll_s: float = 2.0
    rebalance_debounce_s: float = 1.0
    hand_over_margin_s: float = 10.0
    static_grace_s: float = 15.0
    end_blockers: bool = False
    visibility_timeout_s: float = 30.0
    prefetch: int = 500
    prefetch_bytes: int = 8 * 1024 * 1024
    max_in_flight: int = 1000
    max_in_flight_bytes: int = 64 * 1024 * 1024
    pause_above_cpu: float | None = None
    max_holes: int = 256
    max_parked: int = 10_000
    linger_s: float = 0.01
    poll_max_s: float = 1.0
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    listen: bool = True
    pooler: Pooler = field(default_factory=_pooler_named)
    drain_timeout_s: float = 30.0
    commit_timeout_s: float = 30.0
    connect_timeout_s: float = 10.0
    round_trip_timeout_s: float = 12.0
    prepare: bool | None = None
    pool_size: int = 10
    pool_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        for name in self.names():
            if wrong(name, getattr(self, name)):
                raise ConfigError(f"{name} is {allowed(name)}, found {getattr(self, name)!r}")
        if self.lease_s < 3 * self.heartbeat_s + self.self_fence_margin_s / 2:
            raise ConfigError(
                f"lease_s {self.lease_s:g} leaves room for fewer than 3 heartbeats of heartbeat_s {self.heartbeat_s:g}; "
                "one lost would fence the process"
            )

    @property
    def hand_over_s(self) -> float:
        """How long an owner may take to hand a partition over."""
        return self.drain_timeout_s + self.hand_over_margin_s

    @property
    def pooled(self) -> bool:
        """No session state may be used: no LISTEN, no session lock, nothing that is set outside of a transaction.

        False also as long as nobody has looked ("auto"); a coordinator that has connected knows.
        """
        return self.pooler == "transaction"

    @property
    def listens(self) -> bool:
        """LISTEN is wanted, and can work."""
        return self.listen and not self.pooled

    @property
    def prepares(self) -> bool | None:
        """Whether the driver may prepare statements; None: that depends on a pooler, and nobody has looked yet."""
        if self.prepare is not None or self.pooler == "auto":
            return self.prepare
        return not self.pooled

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(item.name for item in fields(cls))


_BOUNDS: tuple[tuple[str, float, float], ...] = (
    ("lease_s", 0.5, 3600),
    ("heartbeat_s", 0.1, 1200),
    ("self_fence_margin_s", 0.05, 60),
    ("membership_poll_s", 0.05, 60),
    ("rebalance_debounce_s", 0, 60),
    ("hand_over_margin_s", 0, 3600),
    ("static_grace_s", 0, 86400),
    ("visibility_timeout_s", 0.05, 43200),
    ("prefetch", 1, 10000),
    ("prefetch_bytes", 1, 2**40),
    ("max_in_flight", 1, 1_000_000),
    ("max_in_flight_bytes", 1, 2**40),
    ("max_holes", 1, 10000),
    ("max_parked", 1, 1_000_000),
    ("linger_s", 0, 10),
    ("poll_max_s", 0.01, 60),
    ("drain_timeout_s", 0, 3600),
    ("commit_timeout_s", 0.1, 3600),
    ("connect_timeout_s", 1, 600),
    ("round_trip_timeout_s", 0.5, 600),
    ("pool_size", 1, 1000),
    ("pool_timeout_s", 0.1, 600),
    ("metrics_port", 0, _MAX_PORT),
    ("pause_above_cpu", 1, _ALL_CPU),
)
_RANGES = {name: (low, high) for name, low, high in _BOUNDS}
_OPTIONAL = frozenset({"metrics_port", "pause_above_cpu", "prepare"})
_WHOLE = frozenset(
    {
        "prefetch",
        "prefetch_bytes",
        "max_in_flight",
        "max_in_flight_bytes",
        "max_holes",
        "max_parked",
        "pool_size",
        "metrics_port",
    }
)
_SWITCHES = frozenset({"end_blockers", "listen", "prepare"})
_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def allowed(name: str) -> str:
    """Say what a setting may be."""
    or_none = ", or None" if name in _OPTIONAL else ""
    if name in _SWITCHES:
        return f"true or false{or_none}"
    if name in _RANGES:
        low, high = _RANGES[name]
        whole = "a whole number " if name in _WHOLE else ""
        return f"{whole}between {low:.15g} and {high:.15g}{or_none}"
    if name == "pooler":
        return f"one of {', '.join(get_args(Pooler))}"
    return "a text that is not empty"


def wrong(name: str, value: object) -> bool:
    """Tell whether a setting may not be this."""
    if value is None:
        return name not in _OPTIONAL
    if name in _SWITCHES:
        return not isinstance(value, bool)
    if name in _RANGES:
        low, high = _RANGES[name]
        number = isinstance(value, int if name in _WHOLE else int | float) and not isinstance(value, bool)
        # NaN is neither below nor above.
        return not (number and low <= value <= high)  # type: ignore[operator]
    if name == "pooler":
        return value not in get_args(Pooler)
    return not isinstance(value, str) or not value


def read(name: str, text: str) -> object:
    """Read a setting from the text of a variable; what cannot be read is returned as it is, and is wrong."""
    if name in _OPTIONAL and text.lower() == "none":
        return None
    if name in _SWITCHES:
        return _WORDS.get(text.lower(), text)
    if name in _RANGES:
        for kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                continue
    return text


def find_dsn(
    argument: str | None = None, environ: Mapping[str, str] | None = None, configured: Found | None = None
) -> Found:
    """Say which database is meant.

    The first of: the argument, COORDINATOR_DSN, DATABASE_URL, what a file has configured, libpq's own variables. libpq's
    defaults ("postgresql://") are meant only where its variables name a server or a database: a service whose DSN is
    missing must fail, not publish into a database that happens to be there. For the same reason an empty DSN is an error, and
    not a reason to go on to the next one: it comes from a variable that nobody has set.

    Raises:
        ConfigError: If nothing names a database, or what should is empty; the message lists the ways.
    """
    environment = os.environ if environ is None else environ
    if argument is not None:
        return _not_empty(argument, "argument", "leave it out (None)")
    for variable in DSN_VARIABLES:
        if variable in environment:
            return _not_empty(environment[variable], variable, "unset it")
    if configured is not None:
        return _not_empty(*configured, "delete it")
    for variable in LIBPQ_VARIABLES:
        if environment.get(variable):
            return Found(_LIBPQ_DEFAULTS, variable)
    raise ConfigError(
        "no database was named: found no DSN argument (--dsn), no COORDINATOR_DSN, no DATABASE_URL, no dsn in "
        "coordinator.toml, and none of libpq's PGHOST, PGSERVICE, PGDATABASE; for a trial without a server, ask for the "
        "embedded one: --embedded, or the DSN "
        '"embedded:"'
    )


def _not_empty(dsn: object, source: str, way_out: str) -> Found:
    if isinstance(dsn, str) and dsn.strip():
        return Found(dsn, source)
    named = "the DSN that was given (dsn, --dsn)" if source == "argument" else f"the DSN of {source}"
    # Of anything but a text only the type: it may hold a password.
    found = "is empty" if isinstance(dsn, str) else f"is of type {type(dsn).__name__}"
    raise ConfigError(
        f"{named} {found}; wanted is a URL such as postgresql://user@host/database, a conninfo string such as "
        f'"host=... dbname=...", or "embedded:"; to go by what comes after it ({_ORDER}), {way_out}'
    )


def find_schema(
    argument: str | None = None, environ: Mapping[str, str] | None = None, configured: Found | None = None
) -> Found:
    """Say which schema is meant: the argument, COORDINATOR_SCHEMA, what a file has configured, or the default.

    Raises:
        ConfigError: If the name is not usable.
    """
    environment = os.environ if environ is None else environ
    if argument is not None:
        found = Found(argument, "argument")
    elif environment.get(SCHEMA_VARIABLE):
        found = Found(environment[SCHEMA_VARIABLE], SCHEMA_VARIABLE)
    elif configured is not None:
        found = configured
    else:
        found = Found(DEFAULT_SCHEMA, "default")
    check_schema_name(found.value)
    return found


def find_static_id(argument: str | None = None, environ: Mapping[str, str] | None = None) -> str | None:
    """Return the name that this process has at every start, if it has one: the argument, or COORDINATOR_STATIC_ID.

    Raises:
        ConfigError: If it is empty, or longer than a name may be.
    """
    environment = os.environ if environ is None else environ
    return checked_id(argument if argument is not None else environment.get(STATIC_ID_VARIABLE) or None)


def checked_id(static_id: object) -> str | None:
    """Return a static id, if there is one. Raises: ConfigError."""
    return None if static_id is None else checked_name("static_id", static_id)


def checked_name(what: str, value: object, max_chars: int = _MAX_STATIC_ID_CHARS) -> str:
    """Return a name that may be told to others. Raises: ConfigError, if it is no text, empty, or too long."""
    if not isinstance(value, str):
        raise ConfigError(f"{what}: wanted a text of 1 to {max_chars} characters, found {value!r}")
    if not 0 < len(value) <= max_chars:
        raise ConfigError(f"{what}: wanted 1 to {max_chars} characters, found {len(value)}")
    if not value.isprintable():
        raise ConfigError(f"{what}: wanted printable characters, found {value!r}")
    return value
