"""`coordinator topics`."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from coordinator.cli import output
from coordinator.cli.commands import Group, Options, pass_options

if TYPE_CHECKING:
    from coordinator.model import TopicInfo


@click.group(cls=Group)
def topics() -> None:
    """Make, list and describe topics; rotate their segments."""


@topics.command(
    examples=(
        "coordinator topics create orders --partitions 12",
        "coordinator topics create photos --max-message-bytes 20000000",
    )
)
@click.argument("name")
@click.option("--partitions", type=int, default=1, show_default=True, help="1 to 1024; it stays as it is made.")
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
@pass_options
def create(
    options: Options,
    name: str,
    *,
    partitions: int,
    max_message_bytes: int,
    wake: bool,
    dedup_window_s: float | None,
    max_backlog: int | None,
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
    output.table(("PARTITION", "LOG-END-OFFSET"), [(p, high + 1) for p, high in enumerate(topic.high_offsets)])


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


def _facts(topic: "TopicInfo") -> dict[str, Any]:
    facts = asdict(topic)
    high_offsets: tuple[int, ...] = facts.pop("high_offsets")
    # "topic", as in all other objects that we print.
    return {
        "topic": facts.pop("name"),
        **facts,
        "messages": _message_count(topic),
        "log_end_offsets": [high + 1 for high in high_offsets],
    }


def _message_count(topic: "TopicInfo") -> int:
    return sum(high + 1 for high in topic.high_offsets)
