"""`coordinator messages`: what the options mean; the work is in publishing.py and consuming.py."""

import json
import sys
from datetime import UTC, datetime

import click

from coordinator.cli import exits, output
from coordinator.cli.commands import Group, Options, pass_options
from coordinator.cli.log_options import log_options


def _headers(_ctx: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]) -> dict[str, str] | None:
    """Read NAME=VALUE; the first = divides."""
    headers: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"found {text!r}, wanted NAME=VALUE")
        if name in headers:
            raise click.BadParameter(f"the header {name!r} is given twice")
        headers[name] = value
    return headers or None


def _start(_ctx: click.Context, _parameter: click.Parameter, text: str) -> str | datetime:
    if text in ("earliest", "latest"):
        return text
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.BadParameter(
            f"found {text!r}, wanted earliest, latest or a time such as 2030-01-31T12:00:00Z"
        ) from error
    # The same command must mean the same on every machine, so a time without an offset is in UTC.
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


@click.group(cls=Group)
def messages() -> None:
    """Publish, consume and look at messages."""


@messages.command(
    examples=(
        "coordinator messages publish orders orders.jsonl.gz --key-field customer",
        "tail -F app.log | coordinator messages publish logs --raw",
        "coordinator messages publish photos cat.jpg --whole --key cat --header type=image/jpeg",
        """echo '{"id": 1}' | coordinator messages publish orders --json""",
    )
)
@click.argument("topic")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True), default="-")
@click.option("--raw", is_flag=True, help="Each line is one message, as the bytes that it has; only its LF is cut off.")
@click.option("--whole", is_flag=True, help="The whole input is one message, as the bytes that it has.")
@click.option("--key", help="The key of every message.")
@click.option(
    "--key-field",
    metavar="NAME",
    help="The field of each JSON object whose string or number is the key; null: no key; objects without it are counted.",
)
@click.option("--require-key", is_flag=True, help="End at an object that has no key in the field of --key-field.")
@click.option(
    "--header",
    "headers",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_headers,
    help="A header of every message; repeatable.",
)
@click.option("--partition", type=click.IntRange(min=0), help="Send all there, whatever their keys.")
@click.option(
    "--batch-size",
    type=click.IntRange(1, 10_000),
    default=500,
    show_default=True,
    help="How many messages are published in one transaction, at most.",
)
@pass_options
def publish(
    options: Options,
    topic: str,
    file: str,
    *,
    raw: bool,
    whole: bool,
    key: str | None,
    key_field: str | None,
    require_key: bool,
    headers: dict[str, str] | None,
    partition: int | None,
    batch_size: int,
) -> None:
    """Publish messages from FILE (a name ending in .gz is unpacked), or from standard input.

    Without --raw and --whole each line is one JSON value; empty lines are skipped. A line that is not what was wanted
    ends the command: nothing of its batch is sent, what was published before stays, and the message says how many
    that is. A batch is sent when it is full and when no more input comes for a moment.
    """
    from coordinator.cli import publishing  # noqa: PLC0415 - other commands do without

    if raw and whole:
        raise click.UsageError("--raw and --whole exclude each other")
    if key is not None and key_field is not None:
        raise click.UsageError("--key and --key-field exclude each other")
    if key_field is not None and (raw or whole):
        raise click.UsageError("--key-field needs JSON lines; with --raw and --whole use --key")
    if require_key and key_field is None:
        raise click.UsageError("--require-key needs --key-field")
    form = publishing.Form(raw, whole, key, key_field, require_key, headers, partition)
    with options.coordinator() as app, publishing.opened(file) as stream:
        summary = publishing.publish(app, topic, stream, form, batch_size=batch_size)
    if summary.keyless_count:
        output.note(
            f"warning: {summary.keyless_count} of {summary.count} objects have no field {key_field!r}, the first in line "
            f"{summary.first_keyless_line}: they were published without a key"
        )
    if options.as_json:
        output.json_object(summary.facts())
    else:
        output.line(summary.text())


@messages.command(
    examples=(
        "coordinator messages consume orders --group billing",
        "coordinator messages consume orders refunds --group audit --exit-at-end > audit.jsonl",
        "coordinator messages consume orders --group rerun-3 --from 2030-01-31T12:00:00Z --count 100 | jq .value",
    )
)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option("--group", required=True, metavar="NAME", help="The consumer group; made if there is none of that name.")
@click.option(
    "--from",
    "start",
    metavar="earliest|latest|TIMESTAMP",
    callback=_start,
    default="earliest",
    show_default=True,
    help="Where a new group starts; a time without an offset is in UTC. A group that exists goes on where it stands.",
)
@click.option("--count", type=click.IntRange(min=1), help="End after that many messages.")
@click.option("--exit-at-end", is_flag=True, help="End when everything published so far has been read.")
@log_options("warning")
@pass_options
def consume(
    options: Options,
    topics: tuple[str, ...],
    *,
    group: str,
    start: str | datetime,
    count: int | None,
    exit_at_end: bool,
) -> None:
    """Read messages as a member of a group: one JSON object a line, with or without --json.

    A message is acked after its line was written and flushed; one whose line could not be written is delivered again.
    A payload that is JSON is the value as it stands; any other bytes are {"payload_base64": "..."}.

    Ctrl-C and SIGTERM end it after the lines being written. That is success (0) without --count and --exit-at-end;
    with one of these it means that the end was not reached (130, 143).

    The end is that of the group: what another member owns, or one that was killed until its lease is over, is waited for.
    """
    from coordinator.cli import consuming  # noqa: PLC0415 - other commands do without

    with options.coordinator() as app:
        code = consuming.consume(app, topics, group=group, start=start, count=count, exit_at_end=exit_at_end)
    click.get_current_context().exit(code)


@messages.command(
    examples=(
        "coordinator messages peek orders",
        "coordinator messages peek orders --partition 3 --offset 1000 --limit 5 --json",
    )
)
@click.argument("topic")
@click.option("--partition", type=click.IntRange(min=0), help="Only this one; else all of them.")
@click.option("--offset", type=click.IntRange(min=0), default=0, show_default=True, help="Where to start.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=10, show_default=True, help="How many of each partition, at most."
)
@pass_options
def peek(options: Options, topic: str, *, partition: int | None, offset: int, limit: int) -> None:
    """Look at messages without a group: nothing is acked or moved.

    With --json one object a line, as consume prints them.
    """
    from coordinator.cli.consuming import line_of  # noqa: PLC0415 - as above
    from coordinator.model import value_text  # noqa: PLC0415

    with options.coordinator() as app:
        found = app.peek(topic, partition=partition, from_offset=offset, limit=limit)
    if options.as_json:
        out = sys.stdout.buffer
        out.write(b"".join(map(line_of, found)))
        out.flush()
        return
    output.table(
        ("PARTITION", "OFFSET", "PUBLISHED", "KEY", "HEADERS", "VALUE"),
        [
            (
                message.partition,
                message.offset,
                message.published_at,
                message.key,
                json.dumps(message.headers, ensure_ascii=False) if message.headers else None,
                value_text(message.payload),
            )
            for message in found
        ],
    )


@messages.command(
    examples=(
        "coordinator messages show orders 3 1042",
        "coordinator messages show orders 3 1042 --group billing",
        "coordinator messages show orders 3 1042 --json | jq '.groups[] | {group, state, error}'",
        "coordinator messages show orders 3 1042 --watch 1",
    )
)
@click.argument("topic")
@click.argument("partition", type=click.IntRange(min=0))
@click.argument("offset", type=click.IntRange(min=0))
@click.option("--group", metavar="NAME", help="Only what it is to this group, with its history.")
@output.watch_option
@pass_options
@click.pass_context
def show(
    ctx: click.Context,
    options: Options,
    topic: str,
    partition: int,
    offset: int,
    *,
    group: str | None,
    watch_s: float | None,
) -> None:
    """Show one message, and what it is to each group that reads the topic.

    early: below the group's start. future: not handed out yet. open: handed out. waiting, behind, running: parked, until a
    time, until its key is free, or handed out again. settled: acked. dead: given up. skipped: passed unsettled.

    Exit code 1 where there is no message at that offset: it was rolled back, dropped by retention, or is not committed yet.
    """
    from coordinator.cli import showing  # noqa: PLC0415 - other commands do without

    there = False
    with options.coordinator() as app:

        def once() -> None:
            nonlocal there
            there = showing.show(app, topic, partition, offset, group, as_json=options.as_json)

        output.watch(once, watch_s)
    if not there:
        ctx.exit(exits.FINDING)
