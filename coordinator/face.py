"""What Coordinator and AsyncCoordinator share: where the database is, how to behave, and what arguments may be."""

import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from coordinator import configuration
from coordinator.consumer.handlers import Decode, Registration
from coordinator.consumer.options import Options, Start
from coordinator.db.dsn import conninfo
from coordinator.errors import ClosedError, ConfigError
from coordinator.model import Message
from coordinator.observe import events
from coordinator.observe.health import Finding
from coordinator.observe.logs import logger
from coordinator.producer.encode import JSON, Codec
from coordinator.protocol.check import nearest
from coordinator.protocol.placeholder import DEFAULT_SCHEMA
from coordinator.settings import EMBEDDED, Settings, checked_name, find_static_id

if TYPE_CHECKING:
    from coordinator.serving.http import Route

log = logger()

P = TypeVar("P")

# How often `run` looks whether it should end.
LOOK_S = 0.1

DEFAULT_MAX_MESSAGE_BYTES = 1024 * 1024

_MAX_PORT = 65535

NOTHING_SUBSCRIBED = "nothing is subscribed: decorate a function with @app.subscribe(topic, group=...)"


class Face:
    """What both faces have: where the database is, and how to behave."""

    def __init__(
        self,
        dsn: str | None = None,
        *,
        schema: str | None = None,
        client_id: str | None = None,
        static_id: str | None = None,
        settings: Settings | None = None,
        codec: Codec = JSON,
    ) -> None:
        """Say which database is meant; nothing is connected before it is needed.

        Args:
            dsn: A URL or conninfo string, also SQLAlchemy's postgresql+psycopg://, or "embedded:" or "embedded:/folder" for
                a server of our own. Otherwise COORDINATOR_DSN, DATABASE_URL, coordinator.toml, or libpq's variables are used.
            schema: Where the schema is installed; COORDINATOR_SCHEMA, coordinator.toml, else "coordinator".
            client_id: Shown to operators; COORDINATOR_CLIENT_ID, coordinator.toml, the host's name by default.
            static_id: A name of the process that `run` is, the same at every start, and nobody else's; COORDINATOR_STATIC_ID,
                else none. With it a restart moves nothing: the new process replaces the old one at once, gets its partitions, and
                nobody else does for static_grace_s after it has left.
            settings: Times and bounds. None: of each what a variable (COORDINATOR_LEASE_S) or coordinator.toml says, else its
                default.
            codec: How values become payloads; JSON by default.

        Raises:
            ConfigError: No database is named, or a value is wrong.
        """
        configured = configuration.load(dsn=dsn, schema=schema)
        self.schema = configured.schema()
        self.settings = settings if settings is not None else configured.settings()
        named = configured.values.get("client_id")
        found_id = named.value if named is not None else socket.gethostname()
        self.client_id = checked_name("client_id", found_id if client_id is None else client_id)
        self.static_id = find_static_id(static_id)
        self.codec = codec
        self._registrations: list[Registration] = []
        self._stop = threading.Event()
        # How many of `run`, `serve` and `maintain` are at it.
        self._at_work = 0
        self._counting = threading.Lock()
        self._making = threading.Lock()
        self._embedded: Any = None
        self._closed = False
        self._pid = os.getpid()
        found = configured.dsn()
        if found.startswith(EMBEDDED):
            self._named = found
            self._dsn: str | None = None
        else:
            self._dsn = self._named = conninfo(found)

    @property
    def dsn(self) -> str:
        """Where to connect; the embedded server is started when this is first asked for.

        Raises:
            ClosedError: `close` was called. Whoever publishes, asks or starts anything needs this, and is told so.
        """
        self._check_open()
        if self._dsn is None:
            from coordinator.db.schema import install  # noqa: PLC0415 - only the embedded server installs by itself
            from coordinator.embedded import data_dir_of, shared_server  # noqa: PLC0415 - POSIX only

            self._embedded = shared_server(data_dir_of(self._named))
            self._dsn = str(self._embedded.dsn)
            # Another schema is made by who says so: a mistake in its name must not make one.
            if self.schema == DEFAULT_SCHEMA:
                install(self._dsn)
        return self._dsn

    @contextmanager
    def _stoppable(self) -> Iterator[None]:
        """`run`, `serve` or `maintain`: a `stop` before this one counts, and is over when the last of them has ended."""
        with self._counting:
            self._at_work += 1
        try:
            yield
        finally:
            with self._counting:
                self._at_work -= 1
                if not self._at_work:
                    self._stop.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"this {type(self).__name__} was closed; make another one, or close it later")

    def _pool_of(self, kind: Callable[..., P]) -> P:
        settings = self.settings
        return kind(
            self.dsn,
            self.schema,
            settings.pool_size,
            settings.pool_timeout_s,
            settings.connect_timeout_s,
            f"coordinator pool {self.client_id}"[:63],
            prepare=settings.prepare,
            pooled=None if settings.pooler == "auto" else settings.pooled,
        )

    def _maintained(self) -> tuple[str, str, float, str]:
        """Where maintenance works, and under what name."""
        return self.dsn, self.schema, self.settings.connect_timeout_s, f"coordinator maintain {self.client_id}"[:63]

    def _served(
        self,
        host: str,
        port: int | None,
        findings: Callable[[], list[Finding]],
        pages: "Mapping[str, Route] | None" = None,
    ) -> AbstractContextManager[object]:
        """Metrics and health over HTTP while the body runs; nothing where no port is named."""
        if port is None:
            return nullcontext()
        from coordinator.serving.endpoint import Where, opened  # noqa: PLC0415 - only for who asks for it

        if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= _MAX_PORT:  # type: ignore[redundant-expr]
            raise ConfigError(f"port: wanted a whole number from 0 to {_MAX_PORT}, found {port!r}")
        checked_name("host", host)
        settings = self.settings
        where = Where(
            host,
            port,
            self.dsn,
            self.schema,
            settings.connect_timeout_s,
            self.client_id,
            prepare=settings.prepares is True,
        )
        return opened(where, findings, pages)

    def _tell_subscriptions(self) -> None:
        for registration in self._registrations:
            options = registration.options
            log.info(
                events.GROUP_SUBSCRIBED,
                extra={
                    "group": options.group,
                    "topics": ",".join(options.topics),
                    "handler": getattr(registration.handler, "__qualname__", type(registration.handler).__name__),
                    "ordering": options.ordering,
                    "concurrency": options.concurrency,
                },
            )

    def _stop_embedded(self) -> None:
        if self._embedded is not None:
            self._embedded.close()
            self._embedded = None
            self._dsn = None


class Peeked:
    """Settles nothing: for messages that were read without a group."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode

    def decode(self, message: Message) -> Any:
        return message.payload if message.content_type == "application/octet-stream" else self._decode(message.payload)

    def ack(self, message: Message, *, wait: bool) -> None:  # noqa: ARG002 - the shape of Settler
        raise TypeError(f"{message!r} was read without a group: there is nothing to settle")

    def nack(self, message: Message, delay_s: float | None) -> None:  # noqa: ARG002 - the shape of Settler
        self.ack(message, wait=False)

    def reject(self, message: Message, reason: str) -> None:  # noqa: ARG002 - the shape of Settler
        self.ack(message, wait=False)

    def transaction(self, message: Message, connection: Any) -> Any:  # noqa: ARG002 - the shape of Settler
        self.ack(message, wait=False)

    def extend(self, message: Message, seconds: float) -> bool:  # noqa: ARG002 - the shape of Settler
        self.ack(message, wait=False)
        return False


def checked_member(value: UUID | str) -> UUID:
    try:
        return UUID(str(value))
    except ValueError as error:
        raise ConfigError(f"member_id: wanted a UUID, as `members` shows it, found {value!r}") from error


def consumer_options(
    topics: tuple[str, ...], group: str, start: Start, auto_ack: object, options: Mapping[str, Any]
) -> Options:
    if not isinstance(auto_ack, bool):
        raise ConfigError(f"auto_ack: wanted True or False, found {auto_ack!r}")
    for name in ("concurrency", "batch_size", "transactional", "max_processing_s"):
        if name in options:
            raise ConfigError(
                f"{name} is for @subscribe; a consumer is one thread's or task's, and takes what it asks for"
            )
    return subscribe_options(topics, group, start, options)


def subscribe_options(topics: tuple[str, ...], group: str, start: Start, options: Mapping[str, Any]) -> Options:
    for name in options:
        if name not in Options.__dataclass_fields__:
            raise ConfigError(f"there is no option {name!r}; {nearest(name, Options.__dataclass_fields__)}")
    return Options(topics, group, start, **options)
