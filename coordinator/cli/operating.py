"""`coordinator groups pause|resume|seek|skip|delete`: what operators do to a group."""

from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from coordinator.cli import output
from coordinator.cli.asking import confirm, reason_option, time_option, yes_option
from coordinator.cli.commands import Command, Options, pass_options
from coordinator.cli.positions import read_positions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coordinator.model import PartitionPause, SeekOutcome

_topic_option = click.option("--topic", metavar="NAME", help="Only this topic; else all that the group reads.")
_partition_option = click.option(
    "--partition", "partitions", type=click.IntRange(min=0), multiple=True, help="Only this one; may be repeated."
)
_execute_option = click.option("--execute", is_flag=True, help="Do it; else only say what would happen.")


@click.command(
    cls=Command,
    examples=(
        "coordinator groups pause billing --reason 'the bank is down'",
        "coordinator groups pause billing --topic orders --partition 3",
    ),
)
@click.argument("name")
@_topic_option
@_partition_option
@reason_option
@pass_options
def pause(options: Options, name: str, *, topic: str | None, partitions: tuple[int, ...], reason: str | None) -> None:
    """Let nothing of a group be fetched or handed over, until it is resumed.

    What runs may finish and is settled. A pause lasts, over restarts too; see `groups describe`.
    """
    with options.coordinator() as app:
        found = app.pause(name, topic, partitions=partitions or None, reason=reason)
    _tell_paused(options, name, found, "paused")


@click.command(
    cls=Command, examples=("coordinator groups resume billing", "coordinator groups resume billing --topic orders")
)
@click.argument("name")
@_topic_option
@_partition_option
@reason_option
@pass_options
def resume(options: Options, name: str, *, topic: str | None, partitions: tuple[int, ...], reason: str | None) -> None:
    """End a pause."""
    with options.coordinator() as app:
        found = app.resume(name, topic, partitions=partitions or None, reason=reason)
    _tell_paused(options, name, found, "resumed")


def _tell_paused(options: Options, name: str, found: "Sequence[PartitionPause]", verb: str) -> None:
    changed = sum(place.changed for place in found)
    if options.as_json:
        output.json_object({"group": name, verb: changed, "partitions": [place._asdict() for place in found]})
    else:
        output.line(f"group {name}: {changed} of {len(found)} partitions {verb}")
    if changed < len(found):
        output.note(f"{len(found) - changed} were so before")


@click.command(
    cls=Command,
    examples=(
        "coordinator groups seek billing --to-earliest",
        "coordinator groups seek billing --topic orders --to-datetime 2030-01-31T12:00:00Z --execute",
        "coordinator groups seek billing --topic orders --partition 3 --shift-by -100 --execute --force",
        "coordinator groups describe billing --json > before.json",
        "coordinator groups seek billing --from-file before.json --execute",
    ),
)
@click.argument("name")
@_topic_option
@_partition_option
@click.option("--to-earliest", is_flag=True, help="To the first message that is kept.")
@click.option("--to-latest", is_flag=True, help="Behind the last one.")
@click.option("--to-offset", type=int, metavar="N", help="To this offset.")
@click.option(
    "--to-datetime", metavar="TIMESTAMP", callback=time_option, help="To what was published then or later (UTC)."
)
@click.option("--shift-by", type=int, metavar="N", help="By so many offsets; negative: backwards.")
@click.option(
    "--from-file",
    type=click.File("rb"),
    help="To where it says: what describe --json printed, or lines topic,partition,offset; - is standard input.",
)
@click.option("--force", is_flag=True, help="Even though members are live: they are fenced.")
@_execute_option
@reason_option
@pass_options
def seek(
    options: Options,
    name: str,
    *,
    topic: str | None,
    partitions: tuple[int, ...],
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_datetime: datetime | None,
    shift_by: int | None,
    from_file: Any,
    force: bool,
    execute: bool,
    reason: str | None,
) -> None:
    """Move a group to another place; without --execute only show where it would go.

    What lies at or above NEW-OFFSET is delivered (again), what lies below it is not. Targets outside of the log are clamped to
    it. SKIPPED counts offsets that are passed unsettled; PARKED messages and DEAD-LETTERS are taken back, because their messages
    come again or are passed. Parked messages below both offsets stay as they are.

    While members are live it is refused (exit code 4), unless it is forced: then they lose the partitions and begin again at
    the new place, and what they were doing is done again. Each partition is moved by itself.
    """
    targets: list[dict[str, Any]] = [
        {"to": "earliest"} if to_earliest else {},
        {"to": "latest"} if to_latest else {},
        {} if to_offset is None else {"to": to_offset},
        {} if to_datetime is None else {"to": to_datetime},
        {} if shift_by is None else {"by": shift_by},
        {} if from_file is None else {"offsets": read_positions(_text(from_file))},
    ]
    chosen = [target for target in targets if target]
    if len(chosen) != 1:
        raise click.UsageError(
            "give one target: --to-earliest, --to-latest, --to-offset, --to-datetime, --shift-by or --from-file"
        )
    if partitions and topic is None:
        raise click.UsageError("--partition is one of a topic: give --topic, too")
    if from_file is not None and topic is not None:
        raise click.UsageError("--from-file says which topics and partitions are meant: give no --topic")
    with options.coordinator() as app:
        found = app.seek(
            name,
            topic,
            partitions=partitions or None,
            force=force,
            dry_run=not execute,
            reason=reason,
            **chosen[0],
        )
    _tell_moved(options, name, found, execute=execute, force=force)


def _tell_moved(options: Options, name: str, found: "Sequence[SeekOutcome]", *, execute: bool, force: bool) -> None:
    members = max((place.members for place in found), default=0)
    if options.as_json:
        places = [{**asdict(place), "clamped": place.clamped} for place in found]
        output.json_object({"group": name, "dry_run": not execute, "members": members, "partitions": places})
    else:
        output.table(
            (
                "TOPIC",
                "PARTITION",
                "CURRENT-OFFSET",
                "NEW-OFFSET",
                "LOG-START-OFFSET",
                "LOG-END-OFFSET",
                "SKIPPED",
                "PARKED",
                "DEAD-LETTERS",
            ),
            [
                (
                    place.topic,
                    place.partition,
                    place.from_offset,
                    place.to_offset,
                    place.log_start_offset,
                    place.log_end_offset,
                    place.skipped,
                    place.parked,
                    place.dead_letters,
                )
                for place in found
            ],
        )
    for place in found:
        if place.clamped:
            output.note(
                f"{place.topic} {place.partition}: {place.wanted_offset} lies outside of the log, clamped to {place.to_offset}"
            )
    if not execute:
        output.note("nothing was moved; --execute moves it")
        if members and not force:
            output.note(f"it would be refused, because {members} members are live: stop them, or give --force")


@click.command(
    cls=Command,
    examples=(
        "coordinator groups skip billing orders 3 1042",
        "coordinator groups skip billing orders 3 1042 --execute --reason 'no such customer'",
        "coordinator groups skip billing orders 3 1042 --dead-letter --execute",
    ),
)
@click.argument("name")
@click.argument("topic")
@click.argument("partition", type=click.IntRange(min=0))
@click.argument("offset", type=click.IntRange(min=0))
@click.option("--dead-letter", is_flag=True, help="Keep it as a dead letter; else it is only recorded as skipped.")
@_execute_option
@reason_option
@pass_options
def skip(
    options: Options,
    name: str,
    topic: str,
    partition: int,
    offset: int,
    *,
    dead_letter: bool,
    execute: bool,
    reason: str | None,
) -> None:
    """Make a group pass one message that blocks it; without --execute only show the message.

    A live owner loses the partition and takes it again at once; what else it was running there is done again.
    """
    with options.coordinator() as app:
        found = app.skip(name, topic, partition, offset, dead_letter=dead_letter, dry_run=not execute, reason=reason)
    if options.as_json:
        output.json_object({"group": name, "dry_run": not execute, "dead_letter": dead_letter, **output.plain(found)})
    else:
        output.table(
            ("TOPIC", "PARTITION", "OFFSET", "STATE", "KEY", "ATTEMPTS", "PUBLISHED", "ERROR"),
            [
                (
                    found.topic,
                    found.partition,
                    found.offset,
                    found.state,
                    found.key,
                    found.attempts,
                    found.published_at,
                    found.error,
                )
            ],
        )
    output.note(
        ("it is a dead letter now" if dead_letter else "it is skipped")
        if execute
        else "nothing was done; --execute makes the group pass it"
    )


@click.command(
    cls=Command, examples=("coordinator groups delete billing", "coordinator groups delete billing --force --yes")
)
@click.argument("name")
@click.option("--force", is_flag=True, help="Even though members are live: what reads it ends then.")
@yes_option
@reason_option
@pass_options
@click.pass_context
def delete(ctx: click.Context, options: Options, name: str, *, force: bool, yes: bool, reason: str | None) -> None:
    """Delete a group for good: its offsets, parked messages and dead letters. Topics stay as they are.

    Refused while members are live (exit code 4), unless it is forced.
    """
    with options.coordinator() as app:
        lag = sum(place.lag for place in app.group_offsets(name))
        dead = sum(app.dead_letters(name).counts().values())
        confirm(ctx, f"delete group {name}, with {lag} messages to settle and {dead} dead letters, for good", yes=yes)
        found = app.delete_group(name, force=force, reason=reason)
    _tell_deleted(options, {"group": name, **found._asdict()})


def _tell_deleted(options: Options, facts: "Mapping[str, Any]") -> None:
    if options.as_json:
        output.json_object({**facts, "deleted": True})
    else:
        output.line(
            f"group {facts['group']} deleted: {facts['partitions']} partitions, {facts['dead_letters']} dead letters"
        )


def _text(file: Any) -> str:
    raw: bytes = file.read()
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        found = raw[error.start : error.start + 4]
        raise click.BadParameter(f"the file is no UTF-8: found {found!r} at byte {error.start}") from error
