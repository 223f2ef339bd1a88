"""`coordinator serve`."""

import click

from coordinator.cli.commands import Command, Options, pass_options
from coordinator.cli.log_options import log_options


@click.command(
    cls=Command,
    examples=(
        "coordinator serve",
        "coordinator serve --host 0.0.0.0 --port 9187 --log-format json",
        "coordinator serve --no-dashboard",
    ),
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on; 0.0.0.0: all.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=9187,
    show_default=True,
    help="The port; 0: any free one, told on standard error.",
)
@click.option("--dashboard/--no-dashboard", default=True, show_default=True, help="Serve pages for people at /.")
@log_options("info")
@pass_options
def serve(options: Options, *, host: str, port: int, dashboard: bool) -> None:
    """Serve metrics, health and a dashboard over HTTP, and do the maintenance.

    /metrics is for Prometheus, /metrics.json the same as JSON; /livez and /readyz answer 200, or 503 with the reasons; / is
    a dashboard that changes nothing. Whoever reaches the port may read: names of topics and groups, keys, and the payloads
    of dead letters where they are asked for. Several may run: one of them exports the gauges of the database.

    Ctrl-C and SIGTERM end it. Exit code 3 if there is no database when it starts; later it is waited for.
    """
    options.log_level = options.log_level or "info"
    with options.coordinator() as app:
        pages = None
        if dashboard:
            from coordinator.dashboard.app import pages_of  # noqa: PLC0415 - only where it is served

            pages = pages_of(app)
        app.serve(host, port, pages=pages)
