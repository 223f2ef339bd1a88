"""`coordinator scheduled`: messages that wait for their time."""

import click

from coordinator.cli import exits, output
from coordinator.cli.commands import Group, Options, pass_options


@click.group(cls=Group)
def scheduled() -> None:
    """List messages that wait for their time; take them back."""


@scheduled.command("list", examples=("coordinator scheduled list", "coordinator scheduled list --topic orders --json"))
@click.option("--topic", metavar="NAME", help="Only of this topic.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="So many, at most.")
@pass_options
def list_scheduled(options: Options, *, topic: str | None, limit: int) -> None:
    """List them, those due first first. With --json one object a line."""
    with options.coordinator() as app:
        found = app.scheduled(topic, limit=limit + 1)
    if options.as_json:
        for message in found[:limit]:
            output.json_object(output.plain(message))
    else:
        output.table(
            ("ID", "TOPIC", "KEY", "DUE", "BYTES", "ATTEMPTS", "ERROR"),
            [
                (m.schedule_id, m.topic, m.key, m.due_at, m.payload_bytes, m.attempts, m.last_error)
                for m in found[:limit]
            ],
        )
    if len(found) > limit:
        output.note(f"there are more than these {limit}; --limit shows more of them")
    if not found:
        output.note("nothing waits for its time")


@scheduled.command(examples=("coordinator scheduled cancel orders 17 18",))
@click.argument("topic")
@click.argument("ids", type=click.IntRange(min=1), nargs=-1, required=True)
@pass_options
@click.pass_context
def cancel(ctx: click.Context, options: Options, topic: str, ids: tuple[int, ...]) -> None:
    """Take messages back, by the numbers that `list` shows.

    Exit code 1 where one is not there any more: it is published already.
    """
    with options.coordinator() as app:
        cancelled = app.cancel_scheduled(topic, ids)
    gone = sorted(set(ids) - set(cancelled))
    if options.as_json:
        output.json_object({"topic": topic, "cancelled": cancelled, "gone": gone})
    else:
        output.line(f"topic {topic}: {len(cancelled)} cancelled")
    if gone:
        output.note(f"not there any more: {output.cell(gone)}")
        ctx.exit(exits.FINDING)
