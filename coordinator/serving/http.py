"""A small HTTP server for numbers and pages: GET and HEAD, a few routes, a bound on everything."""

import socket
import socketserver
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, unquote, urlsplit

from coordinator.errors import ConfigError, NotFoundError, UnavailableError
from coordinator.observe import events
from coordinator.observe.logs import logger, said

log = logger()

# A client that sends nothing, or reads nothing, for so long is left.
_PATIENCE_S = 10.0
_MAX_REQUESTS = 16
_MAX_PATH_CHARS = 2000
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class Request:
    """One GET. `rest`: what is behind the route's own part of the path, decoded, without slashes at its ends."""

    rest: tuple[str, ...]
    query: Mapping[str, str]
    accept: str = ""


@dataclass(frozen=True, slots=True)
class Response:
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: int = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)


Route = Callable[[Request], Response]


class Server:
    """Routes by the first part of the path, served by threads; `port` is the one that was found where 0 was asked for."""

    def __init__(self, host: str, port: int, routes: Mapping[str, Route]) -> None:
        """Take the port.

        Raises:
            ConfigError: It is taken, or the host is none of this machine's.
        """
        try:
            self._server = _Threading(host, port, routes)
        except (OSError, OverflowError) as error:
            raise ConfigError(f"cannot listen on {host} port {port}: {error}") from error
        self.host = host
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="coordinator-http", daemon=True)

    def start(self) -> None:
        self._thread.start()
        log.info(events.SERVING_STARTED, extra={"host": self.host, "port": self.port})

    def stop(self) -> None:
        """Take no request any more; what is being answered may end with the process."""
        if self._thread.ident is not None:
            self._server.shutdown()
            self._thread.join(2.0)
        self._server.server_close()


class _Threading(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int, routes: Mapping[str, Route]) -> None:
        self.routes = routes
        self.room = threading.BoundedSemaphore(_MAX_REQUESTS)
        self.local = host in _LOCAL_NAMES
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Handler)

    def knows(self, host: str) -> bool:
        """Tell whether a request means this server.

        A page in a browser of this machine may be made to believe that its own name leads here (DNS rebinding), and would
        read what is meant for those at this machine alone. Where others are served anyway, any name will do.
        """
        if not self.local:
            return True
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        return name.strip("[]").lower() in _LOCAL_NAMES

    def server_bind(self) -> None:
        # Not HTTPServer's, which asks the resolver for this machine's name: seconds, where there is none.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a client that goes away in the middle is no event."""


class _Handler(BaseHTTPRequestHandler):
    server: _Threading
    protocol_version = "HTTP/1.1"
    server_version = "coordinator"
    sys_version = ""
    timeout = _PATIENCE_S

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        with self.server.room:
            response = self._response()
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        for name, value in response.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(response.body)

    def _response(self) -> Response:
        if not self.server.knows(self.headers.get("Host", "")):
            return plain(HTTPStatus.FORBIDDEN, "this port is served under another name")
        parts = urlsplit(self.path[:_MAX_PATH_CHARS])
        # Split before decoding: an encoded slash belongs to a name.
        first, *rest = [unquote(part) for part in parts.path.strip("/").split("/")]
        route = self.server.routes.get(first)
        if route is None or self.headers.get("Content-Length", "0") != "0":
            return plain(HTTPStatus.NOT_FOUND, "there is no such page")
        request = Request(tuple(rest), dict(parse_qsl(parts.query)), self.headers.get("Accept", ""))
        try:
            return route(request)
        except NotFoundError as error:
            return plain(HTTPStatus.NOT_FOUND, str(error))
        except UnavailableError as error:
            return plain(HTTPStatus.SERVICE_UNAVAILABLE, f"no database: {said(error)}")
        except Exception as error:
            log.exception(events.PAGE_FAILED, extra={"page": first})
            return plain(HTTPStatus.INTERNAL_SERVER_ERROR, said(error))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing: a scrape every few seconds is no event, and a path may hold what does not belong into a log."""


def plain(status: int, text: str) -> Response:
    return Response(f"{text}\n".encode("utf-8", "replace"), status=status)
