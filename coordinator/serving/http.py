"""A small HTTP server for numbers and pages: GET and HEAD, a few routes, a bound on everything."""

import socket
import socketserver
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from coordinator.errors import ConfigError, InvalidInputError, NotFoundError, UnavailableError
from coordinator.observe import events
from coordinator.observe.logs import logger, said

log = logger()

# A client that has not sent its request, or not read its answer, within this is left.
_PATIENCE_S = 10.0
# Of those, and of connections that are kept for another request, only so many: who has kept us waiting longest goes first.
_MAX_CONNECTIONS = 64
# Answers that are being made, and requests that wait for their turn, of each kind; less than the connections, so that somebody
# can go.
_MAX_PAGES, _MAX_WAITING_PAGES = 16, 16
_MAX_OTHERS, _MAX_WAITING_OTHERS = 2, 14
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

    def __init__(
        self,
        host: str,
        port: int,
        routes: Mapping[str, Route],
        *,
        prompt: Collection[str] = (),
        apart: Collection[str] = (),
    ) -> None:
        """Take the port.

        Args:
            prompt: The routes that wait for nothing and take no time; they need no turn.
            apart: Those that wait for no database; they have turns of their own, and are answered while pages hang.

        Raises:
            ConfigError: It is taken, or the host is none of this machine's.
        """
        try:
            self._server = _Threading(host, port, routes, prompt, apart)
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
            log.info(events.SERVING_STOPPED, extra={"host": self.host, "port": self.port})
        self._server.server_close()


class _Turns:
    """So many answers of a kind at once, so many that wait for that, and no more."""

    def __init__(self, most: int, waiting: int) -> None:
        self._room = threading.BoundedSemaphore(most)
        self._crowd = threading.BoundedSemaphore(most + waiting)

    def made(self, make: Callable[[], Response]) -> Response:
        if not self._crowd.acquire(blocking=False):
            return plain(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests at once")
        try:
            with self._room:
                return make()
        finally:
            self._crowd.release()


class _Threading(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = _MAX_CONNECTIONS

    def __init__(
        self, host: str, port: int, routes: Mapping[str, Route], prompt: Collection[str], apart: Collection[str]
    ) -> None:
        self.routes = routes
        pages = _Turns(_MAX_PAGES, _MAX_WAITING_PAGES)
        self.turns = dict.fromkeys(set(routes) - set(prompt), pages)
        self.turns.update(dict.fromkeys(apart, _Turns(_MAX_OTHERS, _MAX_WAITING_OTHERS)))
        self._connections = threading.Lock()
        # Since when a client is waited for; None while it waits for us.
        self._since_s: dict[socket.socket, float | None] = {}
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

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin to serve a connection; where there are too many, leave the client that has been waited for longest.

        Or this one, where all others wait for us.
        """
        with self._connections:
            taken = len(self._since_s) < _MAX_CONNECTIONS or self._leave_oldest()
            if taken:
                self._since_s[request] = time.monotonic()
        if taken:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def _leave_oldest(self, before_s: float = float("inf")) -> bool:
        waited = [(since_s, client) for client, since_s in self._since_s.items() if since_s is not None]
        since_s, client = min(waited, key=lambda one: one[0], default=(before_s, None))
        if client is None or since_s >= before_s:
            return False
        del self._since_s[client]
        # Its thread reads an end, or can't write, and closes it.
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
        return True

    def service_actions(self) -> None:
        """Leave clients that are too slow; a timeout of the socket's begins anew with every byte."""
        with self._connections:
            while self._leave_oldest(time.monotonic() - _PATIENCE_S):
                pass

    def waits_for(self, client: socket.socket, *, us: bool) -> None:
        """A connection's client waits for us now, or we for it."""
        with self._connections:
            if client in self._since_s:
                self._since_s[client] = None if us else time.monotonic()

    def shutdown_request(self, request: Any) -> None:
        """Forget a connection, and close it."""
        with self._connections:
            self._since_s.pop(request, None)
        super().shutdown_request(request)

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
        self.server.waits_for(self.connection, us=True)
        response = self._response()
        self.server.waits_for(self.connection, us=False)
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
        self.server.waits_for(self.connection, us=False)

    def _response(self) -> Response:
        if not self.server.knows(self.headers.get("Host", "")):
            return plain(HTTPStatus.FORBIDDEN, "this port is served under another name")
        if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            # It is not read, and must not be taken for the next request.
            self.close_connection = True
            body = plain(HTTPStatus.BAD_REQUEST, "found a body, which no page takes")
            return replace(body, headers={"Connection": "close"})
        try:
            parts = urlsplit(self.path[:_MAX_PATH_CHARS])
        except ValueError as error:
            return plain(HTTPStatus.BAD_REQUEST, f"found no path in the request: {error}")
        # Split before decoding: an encoded slash belongs to a name.
        first, *rest = [unquote(part) for part in parts.path.strip("/").split("/")]
        route = self.server.routes.get(first)
        if route is None:
            return plain(HTTPStatus.NOT_FOUND, "there is no such page")
        request = Request(tuple(rest), dict(parse_qsl(parts.query)), self.headers.get("Accept", ""))
        turns = self.server.turns.get(first)
        if turns is None:
            return self._made(first, route, request)
        return turns.made(lambda: self._made(first, route, request))

    def _made(self, first: str, route: Route, request: Request) -> Response:
        try:
            return route(request)
        except (NotFoundError, InvalidInputError) as error:
            # What a page is asked for stands in its path, so what can't be is not there.
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
