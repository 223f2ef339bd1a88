"""`coordinator topics`."""

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from coordinator.cli import output
from coordinator.cli.asking import confirm, reason_option, yes_option
from coordinator.cli.commands import Group, Options, pass_options

if TYPE_CHECKING:
    from coordinator.model import TopicInfo


# Given on the command line as "none", which is not the same as not given.
_NONE = object()


def _or_none(kind: type[float] | type[int]) -> Callable[[click.Context, click.Parameter, str | None], object]:
    def read(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> object:
        if text is None:
            return None
        if text == "none":
            return _NONE
        try:
            return kind(text)
        except ValueError as error:
            raise click.BadParameter(f"found {text!r}, wanted a number or none") from error

    return read


def _retention_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add what is kept of a topic, for create and alter; what is not given is no parameter of the call."""
    for option in reversed(
        (
            click.option(
                "--retention-s",
                metavar="SECONDS|none",
                callback=_or_none(float),
                help="A segment may go when it was closed so long ago; a week for a new topic.",
            ),
            click.option(
                "--retention-bytes",
                metavar="BYTES|none",
                callback=_or_none(int),
                help="Or when the segments behind it hold so much.",
            ),
            click.option(
                "--unconsumed",
                type=click.Choice(("keep", "drop")),
                help="What a group has not passed is kept, or skipped for it, and recorded; keep for a new topic.",
            ),
            click.option(
                "--segment-max-age-s",
                metavar="SECONDS|none",
                callback=_or_none(float),
                help="Close a segment that is so old; none: an eighth of the retention.",
            ),
            click.option(
                "--segment-max-bytes",
                metavar="BYTES|none",
                callback=_or_none(int),
                help="Close a segment that is so large; 1 GiB for a new topic.",
            ),
        )
    ):
        command = option(command)
    return command


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: None if value is _NONE else value for name, value in values.items() if value is not None}


@click.group(cls=Group)
def topics() -> None:
    """Make, list, alter and delete topics; rotate their segments."""


@topics.command(
    examples=(
        "coordinator topics create orders --partitions 12",
        "coordinator topics create photos --max-message-bytes 20000000",
    )
)
@click.argument("name")
@click.option("--partitions", type=int, default=1, show_default=True, help="1 to 1024; see add-partitions.")
@click.option(
    "--max-message-bytes", type=int, default=1_048_576, show_default=True, help="The largest payload it takes."
)
@click.option(
    "--wake/--no-wake", default=True, show_default=True, help="Wake waiting consumers with NOTIFY; else they poll."
)
@click.option(
    "--dedup-window-s",
    type=float,
    metavar="SECONDS",
    help="How long a dedup key or message id keeps another message out; else ids are not compared, and keys for a day.",
)
@click.option(
    "--max-backlog",
    type=int,
    metavar="MESSAGES",
    help="Refuse publishes while the slowest group has so many messages to settle; else never.",
)
@_retention_options
@pass_options
def create(
    options: Options,
    /,
    name: str,
    *,
    partitions: int,
    max_message_bytes: int,
    wake: bool,
    dedup_window_s: float | None,
    max_backlog: int | None,
    **retention: Any,
) -> None:
    """Make a topic.

    One that exists with as many partitions is left as it is; with another number it is an error (exit code 4).
    """
    with options.coordinator() as app:
        created = app.create_topic(
            name,
            partitions,
            max_message_bytes=max_message_bytes,
            wake=wake,
            dedup_window_s=dedup_window_s,
            max_backlog=max_backlog,
            **_given(retention),
        )
    if options.as_json:
        output.json_object({"topic": name, "partitions": partitions, "created": created})
    else:
        output.line(f"topic {name} {'created' if created else 'exists'} with {partitions} partitions")


@topics.command("list", examples=("coordinator topics list", "coordinator topics list --json"))
@pass_options
def list_topics(options: Options) -> None:
    """List the topics.

    MESSAGES counts the offsets handed out, those of transactions that were rolled back included.
    """
    with options.coordinator() as app:
        found = app.topics()
    if options.as_json:
        output.json_object({"topics": [_facts(topic) for topic in found]})
        return
    output.table(
        ("TOPIC", "PARTITIONS", "MESSAGES", "BYTES", "SEGMENT", "CREATED"),
        [
            (topic.name, topic.partitions, _message_count(topic), topic.size_bytes, topic.segment, topic.created_at)
            for topic in found
        ],
    )
    if not found:
        output.note("no topics yet; make one: coordinator topics create NAME --partitions N")


@topics.command(examples=("coordinator topics describe orders", "coordinator topics describe orders --json"))
@click.argument("name")
@pass_options
def describe(options: Options, name: str) -> None:
    """Show a topic's settings and the end of each partition."""
    with options.coordinator() as app:
        topic = app.topic(name)
    if options.as_json:
        output.json_object(_facts(topic))
        return
    output.table(
        (
            "TOPIC",
            "PARTITIONS",
            "MESSAGES",
            "BYTES",
            "SEGMENT",
            "FIRST-SEGMENT",
            "MAX-MESSAGE-BYTES",
            "WAKE",
            "DEDUP-WINDOW-S",
            "MAX-BACKLOG",
            "CREATED",
        ),
        [
            (
                topic.name,
                topic.partitions,
                _message_count(topic),
                topic.size_bytes,
                topic.segment,
                topic.first_segment,
                topic.max_message_bytes,
                topic.wake,
                topic.dedup_window_s,
                topic.max_backlog,
                topic.created_at,
            )
        ],
    )
    output.line("")
    output.table(
        ("RETENTION-S", "RETENTION-BYTES", "UNCONSUMED", "SEGMENT-MAX-AGE-S", "SEGMENT-MAX-BYTES"),
        [
            (
                topic.retention_s,
                topic.retention_bytes,
                topic.unconsumed,
                topic.segment_max_age_s,
                topic.segment_max_bytes,
            )
        ],
    )
    output.line("")
    output.table(
        ("PARTITION", "LOG-START-OFFSET", "LOG-END-OFFSET"),
        [
            (p, first, high + 1)
            for p, (first, high) in enumerate(zip(topic.first_offsets, topic.high_offsets, strict=True))
        ],
    )


@topics.command(examples=("coordinator topics rotate orders",))
@click.argument("name")
@pass_options
def rotate(options: Options, name: str) -> None:
    """Make the next segment of a topic and let publishers write to it."""
    with options.coordinator() as app:
        segment = app.rotate(name)
    if options.as_json:
        output.json_object({"topic": name, "segment": segment})
    else:
        output.line(f"topic {name} writes to segment {segment}")


@topics.command(
    examples=(
        "coordinator topics alter orders --max-backlog 100000",
        "coordinator topics alter orders --dedup-window-s none --no-wake",
        "coordinator topics alter orders --retention-s 86400 --unconsumed drop",
    )
)
@click.argument("name")
@click.option("--max-message-bytes", type=int, help="The largest payload it takes.")
@click.option("--wake/--no-wake", default=None, help="Wake waiting consumers with NOTIFY, or let them poll.")
@click.option(
    "--dedup-window-s", metavar="SECONDS|none", callback=_or_none(float), help="As for create; none: no window."
)
@click.option("--max-backlog", metavar="MESSAGES|none", callback=_or_none(int), help="As for create; none: no limit.")
@_retention_options
@reason_option
@pass_options
def alter(options: Options, /, name: str, *, reason: str | None, **given: Any) -> None:
    """Change settings of a topic; what is not given stays as it is.

    It holds for what is published from now on. Publishers may believe the old limit of bytes for a minute.
    """
    settings = _given(given)
    if not settings:
        raise click.UsageError(
            "give a setting: --max-message-bytes, --wake, --no-wake, --dedup-window-s, --max-backlog, --retention-s, "
            "--retention-bytes, --unconsumed, --segment-max-age-s or --segment-max-bytes"
        )
    with options.coordinator() as app:
        before = app.alter_topic(name, reason=reason, **settings)
    if options.as_json:
        output.json_object({"topic": name, "before": before, "after": settings})
    else:
        output.table(
            ("SETTING", "BEFORE", "AFTER"), [(setting, before[setting], settings[setting]) for setting in settings]
        )


def _roles(_ctx: click.Context, _parameter: click.Parameter, names: tuple[str, ...]) -> list[str] | None:
    if len(names) > 1 and {"everybody", "nobody"} & set(names):
        raise click.BadParameter(f"found {' and '.join(names)}, wanted everybody, nobody, or roles")
    if names == ("everybody",):
        return None
    return [name for name in names if name != "nobody"]


@topics.command(
    examples=(
        "coordinator topics rights orders --publish shop --subscribe billing --subscribe audit",
        "coordinator topics rights orders --publish everybody --subscribe everybody",
    )
)
@click.argument("name")
@click.option(
    "--publish",
    multiple=True,
    required=True,
    metavar="ROLE|everybody|nobody",
    callback=_roles,
    help="Who may publish; several times for several.",
)
@click.option(
    "--subscribe",
    multiple=True,
    required=True,
    metavar="ROLE|everybody|nobody",
    callback=_roles,
    help="Who may read; several times for several.",
)
@pass_options
def rights(options: Options, name: str, *, publish: list[str] | None, subscribe: list[str] | None) -> None:
    """Name the roles that may publish to a topic and read it; the owner of the schema always may.

    Everybody: whoever may call the functions, see db grants. Members of a role have its rights.
    """
    with options.coordinator() as app:
        app.set_topic_rights(name, publish=publish, subscribe=subscribe)
    if options.as_json:
        output.json_object({"topic": name, "publish": publish, "subscribe": subscribe})
    else:
        output.table(
            ("TOPIC", "PUBLISH", "SUBSCRIBE"),
            [(name, *("everybody" if who is None else ", ".join(who) or "nobody" for who in (publish, subscribe)))],
        )


@topics.command("add-partitions", examples=("coordinator topics add-partitions orders --partitions 24",))
@click.argument("name")
@click.option("--partitions", type=int, required=True, help="How many it is to have.")
@reason_option
@pass_options
def add_partitions(options: Options, name: str, *, partitions: int, reason: str | None) -> None:
    """Raise the count of a topic's partitions; groups read the new ones from their first offset.

    New messages of a key may go to another partition than its old ones, and be handled before them. It cannot be undone.
    """
    with options.coordinator() as app:
        added = app.add_partitions(name, partitions, reason=reason)
    if options.as_json:
        output.json_object({"topic": name, "partitions": partitions, "added": added})
    else:
        output.line(f"topic {name} has {partitions} partitions, {added} of them new")
    if added:
        output.note("keys may have another partition from now on: their order is kept only among new messages")


@topics.command(examples=("coordinator topics delete orders", "coordinator topics delete orders --force --yes"))
@click.argument("name")
@click.option("--force", is_flag=True, help="Even though it is in use: all that is lost, and live consumers fail.")
@yes_option
@reason_option
@pass_options
@click.pass_context
def delete(ctx: click.Context, options: Options, name: str, *, force: bool, yes: bool, reason: str | None) -> None:
    """Delete a topic for good, with its messages and what groups have of it, dead letters too.

    Refused while members read it, messages are unsettled or scheduled, or an open transaction has published to it (exit code 4),
    unless it is forced.
    """
    with options.coordinator() as app:
        topic = app.topic(name)
        confirm(ctx, f"delete topic {name} with {_message_count(topic)} messages for good", yes=yes)
        found = app.delete_topic(name, force=force, reason=reason)
    if options.as_json:
        output.json_object({"topic": name, "deleted": True, **found._asdict()})
    else:
        output.line(
            f"topic {name} deleted; groups {output.cell(found.groups)} had {found.unsettled} messages to settle, "
            f"{found.scheduled} were scheduled"
        )


def _facts(topic: "TopicInfo") -> dict[str, Any]:
    facts = asdict(topic)
    high_offsets: tuple[int, ...] = facts.pop("high_offsets")
    first_offsets: tuple[int, ...] = facts.pop("first_offsets")
    # "topic", as in all other objects that we print.
    return {
        "topic": facts.pop("name"),
        **facts,
        "messages": _message_count(topic),
        "log_start_offsets": list(first_offsets),
        "log_end_offsets": [high + 1 for high in high_offsets],
    }


def _message_count(topic: "TopicInfo") -> int:
    return sum(high + 1 for high in topic.high_offsets)
