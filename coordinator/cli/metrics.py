"""`coordinator metrics`."""

import json

import click

from coordinator.cli import output
from coordinator.cli.commands import Group, Options, pass_options


@click.group(cls=Group)
def metrics() -> None:
    """Print metrics of the database, alert rules for Prometheus, and a dashboard for Grafana."""


@metrics.command("print", examples=("coordinator metrics print", "coordinator metrics print --json"))
@pass_options
def print_metrics(options: Options) -> None:
    """Print the gauges of the database once, as Prometheus reads them; with --json as JSON.

    What a process counts is served by that process alone: `coordinator serve`, and `coordinator run --metrics-port`.
    """
    from coordinator.serving.exposition import objects, text  # noqa: PLC0415 - --help does without

    with options.coordinator() as app:
        reading = app.gauges()
    if reading.withheld:
        output.note(
            f"not read, because the server keeps it from the owner of the schema: {', '.join(reading.withheld)}"
        )
    if options.as_json:
        output.json_object({"metrics": objects(reading)})
    else:
        output.line(text(lambda: reading, own=False)[0].decode().rstrip("\n"))


@metrics.command(examples=("coordinator metrics rules > /etc/prometheus/rules/coordinator.yml",))
@click.option(
    "--runbooks",
    metavar="URL",
    default="docs/runbooks.md",
    show_default=True,
    help="Where the runbooks are: each alert links its heading there.",
)
def rules(runbooks: str) -> None:
    """Print alert rules for Prometheus, as YAML."""
    from coordinator.observe.rules import rules_text  # noqa: PLC0415 - as above

    output.line(rules_text(runbooks).rstrip("\n"))


@metrics.command(examples=("coordinator metrics dashboard > coordinator.json",))
def dashboard() -> None:
    """Print a dashboard to be imported into Grafana, as JSON."""
    from coordinator.observe.grafana import dashboard_of  # noqa: PLC0415 - as above

    output.line(json.dumps(dashboard_of(), indent=2))
