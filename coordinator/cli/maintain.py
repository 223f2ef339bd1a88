"""`coordinator maintain`."""

from dataclasses import asdict

import click

from coordinator.cli import exits, output
from coordinator.cli.commands import Command, Options, pass_options
from coordinator.cli.log_options import log_options


@click.command(
    cls=Command,
    examples=("coordinator maintain", "coordinator maintain --once --json"),
)
@click.option("--once", is_flag=True, help="Do what is to be done now, tell what that was, and end.")
@log_options("warning")
@pass_options
@click.pass_context
def maintain(ctx: click.Context, options: Options, *, once: bool) -> None:
    """Publish scheduled messages when they are due, and forget dedup keys whose window is over.

    Every consumer does that by the way; run this where messages are scheduled and no consumer runs. Several may run at
    once, one of them works. Ctrl-C and SIGTERM end it.

    Once a minute it also drops dead letters beyond the bound of their group, which consumers don't do.

    With --once, exit code 1 if a message could not be published: it is kept, and tried again later.
    """
    with options.coordinator() as app:
        if not once:
            app.maintain()
            return
        done = app.maintain(once=True)
    if options.as_json:
        output.json_object(asdict(done))
    else:
        output.line(f"{done.moved} messages published, {done.failed} failed, {done.expired} dedup keys forgotten")
    if done.failed:
        ctx.exit(exits.FINDING)
