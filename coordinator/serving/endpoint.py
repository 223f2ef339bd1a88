"""The port that a process opens: metrics, health, and the gauges of the database where it has the turn to export them."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from coordinator.observe.health import Finding, body
from coordinator.observe.meter import METER, Reading
from coordinator.serving.gauges import DatabaseGauges, opener
from coordinator.serving.http import Request, Response, Route, Server

# No answer to the gauges for so long makes a process of ours red that has nothing else to look at a database with.
_AWAY_S = 5.0


@dataclass(frozen=True, slots=True)
class Where:
    """The port to take, and the database whose gauges are served there."""

    host: str
    port: int
    dsn: str
    schema: str
    connect_timeout_s: float
    client_id: str
    prepare: bool


class Endpoint:
    """Start and stop it with what it reports on.

    Attributes:
        port: The one that was found where 0 was asked for.
    """

    def __init__(
        self,
        host: str,
        port: int,
        gauges: DatabaseGauges,
        findings: Callable[[], list[Finding]],
        pages: Mapping[str, Route] | None = None,
    ) -> None:
        """Take the port; `findings` says what is wrong with the rest of the process. Raises: ConfigError."""
        self._gauges = gauges
        self._findings = findings
        routes: dict[str, Route] = {
            **(pages or {"": self._index}),
            "metrics": self._metrics,
            "metrics.json": self._json,
            "livez": self._live,
            "readyz": self._ready,
        }
        # To put together many metrics takes a while, but no database; they are wanted most while that hangs.
        self._server = Server(host, port, routes, prompt=("livez", "readyz"), apart=("metrics", "metrics.json"))
        self.port = self._server.port

    def start(self) -> None:
        self._gauges.start()
        self._server.start()

    def stop(self) -> None:
        self._server.stop()
        self._gauges.stop()

    def read(self) -> Reading:
        """All metrics as they are now."""
        reading = METER.read()
        self._gauges.read(reading)
        return reading

    def findings(self) -> list[Finding]:
        """Everything that is wrong."""
        found = self._findings()
        if self._gauges.failure is not None or not self._gauges.alive:
            found.append(Finding("loop_dead", "the loop that reads the gauges of the database has ended", live=True))
        away_s = self._gauges.away_s()
        if away_s >= _AWAY_S and not any(finding.code == "database_away" for finding in found):
            found.append(Finding("database_away", f"no database for {away_s:.0f} s: {self._gauges.away_reason}"))
        return found

    def _metrics(self, request: Request) -> Response:
        # Not above: prometheus_client is for processes that are asked for metrics.
        from coordinator.serving.exposition import text  # noqa: PLC0415

        content, content_type = text(self.read, request.accept)
        return Response(content, content_type)

    def _json(self, _request: Request) -> Response:
        from coordinator.serving.exposition import objects  # noqa: PLC0415 - as above

        return _as_json({"metrics": objects(self.read())})

    def _live(self, _request: Request) -> Response:
        return _health([finding for finding in self.findings() if finding.live])

    def _ready(self, _request: Request) -> Response:
        return _health(self.findings())

    def _index(self, _request: Request) -> Response:
        return Response(b"coordinator: /metrics /metrics.json /livez /readyz\n")


def _health(findings: list[Finding]) -> Response:
    return _as_json(body(findings), HTTPStatus.SERVICE_UNAVAILABLE if findings else HTTPStatus.OK)


def _as_json(value: Mapping[str, Any], status: int = HTTPStatus.OK) -> Response:
    return Response(f"{json.dumps(value)}\n".encode(), "application/json", status)


@contextmanager
def opened(
    where: Where, findings: Callable[[], list[Finding]], pages: Mapping[str, Route] | None = None
) -> Iterator[Endpoint]:
    """Serve while the body runs. Raises: ConfigError where the port cannot be had."""
    gauges = DatabaseGauges(
        opener(where.dsn, where.connect_timeout_s, where.client_id, prepare=where.prepare), where.schema
    )
    endpoint = Endpoint(where.host, where.port, gauges, findings, pages)
    endpoint.start()
    try:
        yield endpoint
    finally:
        endpoint.stop()
