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
    """Publish scheduled messages when they are due; rotate segments, and drop those that nobody needs; delete what is old.

    Every consumer does that by the way; run this where no consumer runs. Several may run at once, one of them works.
    Ctrl-C and SIGTERM end it. As the owner of the schema it also detaches segments whose topic is never free of locks.

    Once a minute it also drops dead letters beyond the bound of their group, which consumers don't do. Processes whose lease is
    over are declared dead, once it has been connected for as long as a lease; so --once judges nobody.

    With --once, exit code 1 if a message could not be published, or a segment not be dropped: both are tried again later. A
    segment is dropped ten seconds after it was retired, so by the next round.
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
        output.line(
            f"segments: {done.rotated} opened, {done.retired} retired, {done.dropped} dropped, {done.blocked} locked; "
            f"{done.skipped} partitions skipped, {done.failed_tasks} tasks failed"
        )
    if done.failed or done.blocked or done.failed_tasks:
        ctx.exit(exits.FINDING)
