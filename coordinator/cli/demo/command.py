"""`coordinator demo`: parse, run, print."""

import click

from coordinator.cli import exits, output
from coordinator.cli.commands import Command, FiniteRange, pass_options
from coordinator.cli.commands import Options as GlobalOptions
from coordinator.cli.database import database
from coordinator.cli.demo.processes import DemoError
from coordinator.cli.demo.progress import Progress
from coordinator.cli.demo.report import as_object, print_report
from coordinator.cli.demo.run import Options, Run
from coordinator.cli.events import show_events
from coordinator.cli.failures import lines_of

_DATA_COUNT = 6099


@click.command(
    cls=Command,
    examples=(
        "coordinator demo --embedded",
        "coordinator demo --dsn postgresql://me@db/test --messages 20000 --processes 4",
        "coordinator demo --embedded --json",
    ),
)
@click.option(
    "--messages",
    type=click.IntRange(min=100),
    default=_DATA_COUNT,
    show_default=True,
    help="How many flights to publish; the data is cut or repeated.",
)
@click.option(
    "--processes", type=click.IntRange(2, 8), default=3, show_default=True, help="Consumer processes in each group."
)
@click.option(
    "--timeout-s",
    type=FiniteRange(min=1),
    default=120,
    show_default=True,
    help="Give up after this time, with exit code 1.",
)
@pass_options
@click.pass_context
def demo(ctx: click.Context, options: GlobalOptions, messages: int, processes: int, timeout_s: float) -> None:
    """Show the main job on real input, and prove that nothing is lost.

    Publishes a week of real flights from several processes, partly in transactions with business rows and with some of
    them rolled back, and lets two groups of processes consume them. One keeps sums in the transactions that carry its
    acks, and makes dead letters of cancelled flights. One of its processes is killed in the middle of its work, and one
    message kills every process that handles it, until it is a dead letter, too. Then some dead letters are replayed, and
    what the groups arrived at is compared with what follows from the file. Exit code 1 if anything does not add up.

    Uses the schemas coordinator_demo and coordinator_demo_service, which are dropped and made again at every start.
    """
    if options.schema is not None:
        raise click.UsageError("the demo has schemas of its own; leave out --schema")
    show_events(verbose=options.verbose)
    try:
        with database(options) as dsn, Progress() as progress:
            report = Run(Options(dsn, messages, processes, timeout_s), progress).run()
    except DemoError as error:
        click.echo("\n".join(lines_of(error)), err=True)
        ctx.exit(exits.FINDING)
    if options.as_json:
        output.json_object(as_object(report))
    else:
        print_report(report)
    ctx.exit(exits.OK if report.ok else exits.FINDING)
