"""`coordinator dlq`: what groups gave up on."""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from coordinator.cli import exits, output
from coordinator.cli.asking import time_option
from coordinator.cli.commands import FiniteRange, Group, Options, pass_options

if TYPE_CHECKING:
    from coordinator.model import DeadLetter

_ERROR_CHARS = 80
# One more is asked for, to see whether there are more.
_MAX_LIST = 2**31 - 2


def _filters(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say which dead letters are meant; they come as keywords named as in the API."""
    for option in reversed(
        (
            click.option("--topic", metavar="NAME", help="Only of this topic."),
            click.option("--partition", type=click.IntRange(min=0), help="Only of this partition."),
            click.option("--offset", type=click.IntRange(min=0), help="Only at this offset."),
            click.option("--reason", metavar="attempts|crash|rejected|skipped", help="Only what died of this."),
            click.option(
                "--error", metavar="REGEX", help="Only where PostgreSQL finds this pattern in the last error."
            ),
            click.option("--key", metavar="KEY", help="Only of this key."),
            click.option(
                "--since", metavar="TIMESTAMP", callback=time_option, help="Only what died then or later (UTC)."
            ),
            click.option(
                "--until", metavar="TIMESTAMP", callback=time_option, help="Only what died before then (UTC)."
            ),
        )
    ):
        function = option(function)
    return function


@click.group(cls=Group)
def dlq() -> None:
    """List, show, replay, export and purge dead letters."""


@dlq.command(
    "list",
    examples=(
        "coordinator dlq list billing",
        "coordinator dlq list billing --topic orders --reason attempts --error 'timeout|refused'",
        "coordinator dlq list billing --since 2030-01-31T12:00 --limit 1000 --json | jq .offset",
    ),
)
@click.argument("group")
@_filters
@click.option(
    "--limit", type=click.IntRange(min=1, max=_MAX_LIST), default=100, show_default=True, help="So many, at most."
)
@pass_options
def list_letters(options: Options, /, group: str, *, limit: int, **filters: Any) -> None:
    """List dead letters, those that died first first.

    With --json one object a line, without payloads and histories: `show` and `export` have these.
    """
    with options.coordinator() as app:
        # One more than is shown tells whether there is more.
        found = app.dead_letters(group).list(limit=limit + 1, **filters)
    shown = found[:limit]
    if options.as_json:
        from coordinator.dead_letters import facts_of  # noqa: PLC0415 - heavy, and here already

        for letter in shown:
            output.json_object(facts_of(letter))
    else:
        output.table(
            (
                "TOPIC",
                "PARTITION",
                "OFFSET",
                "KEY",
                "REASON",
                "ATTEMPTS",
                "CRASHES",
                "REPLAYS",
                "BYTES",
                "DIED",
                "ERROR",
            ),
            [_row(letter) for letter in shown],
        )
    if len(found) > limit:
        output.note(f"there are more than these {limit}; --limit shows more of them")
    if not found:
        narrowed = any(value is not None for value in filters.values())
        output.note(f"group {group} has no dead letters" + (" that match" if narrowed else ""))


@dlq.command(
    examples=("coordinator dlq show billing orders 3 1042", "coordinator dlq show billing orders 3 1042 --json")
)
@click.argument("group")
@click.argument("topic")
@click.argument("partition", type=click.IntRange(min=0))
@click.argument("offset", type=click.IntRange(min=0))
@pass_options
def show(options: Options, group: str, topic: str, partition: int, offset: int) -> None:
    """Show one dead letter with its payload, headers and history.

    The history holds the first failure and the last four; a replay does not clear it.
    """
    from coordinator.model import value_text  # noqa: PLC0415

    with options.coordinator() as app:
        letter = app.dead_letters(group).get(topic, partition, offset)
    if options.as_json:
        _write_lines(letter)
        return
    for name, value in asdict(letter).items():
        if name not in ("errors", "payload", "headers"):
            shown = "application/json" if name == "content_type" and value is None else value
            output.line(f"{name.replace('_', '-') + ':':<15}{output.cell(shown)}")
    output.line(f"{'headers:':<15}{output.cell(_json(letter.headers))}")
    output.line(f"{'payload:':<15}{output.cell(value_text(letter.payload or b''))}")
    output.history(letter.errors or ())


@dlq.command(examples=("coordinator dlq stats billing", "coordinator dlq stats billing --topic orders --json"))
@click.argument("group")
@_filters
@pass_options
def stats(options: Options, /, group: str, **filters: Any) -> None:
    """Show why messages died: counts by topic, reason and the first line of the error.

    DROPPED counts what the group's bound has cost: when it has more dead letters than that, what died first is deleted.
    """
    with options.coordinator() as app:
        found = app.dead_letters(group).stats(**filters)
    totals = found.totals
    if options.as_json:
        output.json_object(
            {"group": group, **output.plain(totals), "matched": found.matched, "causes": list(found.causes)}
        )
        return
    output.line(
        f"group {group}: {totals.dead_letters} dead letters of {totals.max_dead_letters} at most, "
        f"{totals.dropped} dropped; oldest {output.cell(totals.oldest)}, newest {output.cell(totals.newest)}"
    )
    output.table(
        ("DEAD-LETTERS", "TOPIC", "REASON", "OLDEST", "NEWEST", "ERROR"),
        [
            (cause.dead_letters, cause.topic, cause.reason, cause.oldest, cause.newest, _short(cause.error))
            for cause in found.causes
        ],
    )


@dlq.command(
    examples=(
        "coordinator dlq replay billing --dry-run",
        "coordinator dlq replay billing --topic orders --error 'timeout' --rate 50 --yes",
        "coordinator dlq replay billing --topic orders --partition 3 --offset 1042 --yes",
    )
)
@click.argument("group")
@_filters
@click.option("--rate", type=FiniteRange(min=0, min_open=True), help="So many a second, at most.")
@click.option("--limit", type=click.IntRange(min=1), help="So many, at most.")
@click.option("--dry-run", is_flag=True, help="Only count.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@pass_options
@click.pass_context
def replay(
    ctx: click.Context,
    options: Options,
    /,
    group: str,
    *,
    rate: float | None,
    limit: int | None,
    dry_run: bool,
    yes: bool,
    **filters: Any,
) -> None:
    """Give dead letters back to their group, and to no other.

    A replayed message starts at attempt 1 and keeps its history; what is replayed is gone from the list. So a replay that
    was cut off goes on when it is called again, and two at once replay nothing twice. What dies (again) meanwhile is left.

    Exit code 1 where something was left because too many messages wait in its partition, or the question was not
    answered with yes.
    """
    with options.coordinator() as app:
        letters = app.dead_letters(group)
        planned = letters.replay(dry_run=True, limit=limit, **filters)
        if dry_run:
            _tell(options, {"group": group, "dry_run": True, "matched": planned.matched}, "would be replayed")
            return
        if not _confirmed(ctx, planned.matched, f"replay {planned.matched} dead letters to group {group}", yes=yes):
            return
        # What has died since it was counted was not meant.
        filters["until"] = planned.as_of
        done = 0

        def on_batch(count: int) -> None:
            nonlocal done
            done = count

        try:
            outcome = letters.replay(rate=rate, limit=limit, on_batch=on_batch, **filters)
        except BaseException:
            if done:
                output.note(f"{done} were replayed before; the same call goes on with the rest")
            raise
    facts = {"group": group, "dry_run": False, **output.plain(outcome)}
    if options.as_json:
        output.json_object(facts)
    else:
        output.table(
            ("MATCHED", "REPLAYED", "GONE", "FULL"),
            [(outcome.matched, outcome.replayed, outcome.gone, outcome.full)],
        )
    if outcome.full:
        output.note(
            f"{outcome.full} were left: too many messages wait in their partitions; replay again when they don't"
        )
        ctx.exit(exits.FINDING)


@dlq.command(
    examples=(
        "coordinator dlq purge billing --until 2030-01-01 --dry-run",
        "coordinator dlq purge billing --topic orders --reason rejected --yes",
    )
)
@click.argument("group")
@_filters
@click.option("--dry-run", is_flag=True, help="Only count.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@pass_options
@click.pass_context
def purge(ctx: click.Context, options: Options, /, group: str, *, dry_run: bool, yes: bool, **filters: Any) -> None:
    """Delete dead letters for good; `export` them first.

    What somebody is replaying at this moment is left, and counted as GONE. Exit code 1 where the question was not answered
    with yes.
    """
    with options.coordinator() as app:
        letters = app.dead_letters(group)
        planned = letters.purge(dry_run=True, **filters)
        if dry_run:
            _tell(options, {"group": group, "dry_run": True, "matched": planned.matched}, "would be purged")
            return
        question = f"delete {planned.matched} dead letters of group {group} for good"
        if not _confirmed(ctx, planned.matched, question, yes=yes):
            return
        filters["until"] = planned.as_of
        outcome = letters.purge(**filters)
    if options.as_json:
        output.json_object({"group": group, "dry_run": False, **output.plain(outcome)})
    else:
        output.table(("MATCHED", "PURGED", "GONE"), [(outcome.matched, outcome.purged, outcome.gone)])


@dlq.command(
    examples=(
        "coordinator dlq export billing > billing.jsonl",
        "coordinator dlq export billing --topic orders | jq -c .value | coordinator messages publish orders-fixed",
    )
)
@click.argument("group")
@_filters
@pass_options
def export(options: Options, /, group: str, **filters: Any) -> None:
    """Write dead letters as lines of JSON, with payload, headers and history; with or without --json.

    A payload that is JSON is the value as it stands; any other bytes are {"payload_base64": "..."}.
    """
    with options.coordinator() as app:
        for letter in app.dead_letters(group).iterate(**filters):
            _write_lines(letter)


def _write_lines(letter: "DeadLetter") -> None:
    from coordinator.dead_letters import json_line  # noqa: PLC0415

    # Bytes, as UTF-8 whatever the locale says. A lone surrogate, which JSON may carry, becomes an escape again.
    sys.stdout.buffer.write(json_line(letter).encode("utf-8", "backslashreplace"))
    sys.stdout.buffer.flush()


def _tell(options: Options, facts: dict[str, Any], what: str) -> None:
    if options.as_json:
        output.json_object(facts)
    else:
        output.line(f"{facts['matched']} dead letters of group {facts['group']} {what}")


def _confirmed(ctx: click.Context, matched: int, question: str, *, yes: bool) -> bool:
    """Ask, on standard error; without a yes the command ends with a finding, unless there was nothing to do."""
    if yes:
        return True
    if matched:
        try:
            if click.confirm(question, err=True):
                return True
        except click.Abort:
            output.note("")  # there is nobody to answer: end the line of the question
        output.note("nothing was done; --yes does it without a question")
        ctx.exit(exits.FINDING)
    output.note("there is nothing to do")
    return False


def _row(letter: "DeadLetter") -> tuple[object, ...]:
    return (
        letter.topic,
        letter.partition,
        letter.offset,
        letter.key,
        letter.reason,
        letter.attempts,
        letter.crashes,
        letter.replays,
        letter.payload_bytes,
        letter.died_at,
        _short(letter.error),
    )


def _short(error: str | None) -> str | None:
    if error is None:
        return None
    first = error.split("\n", 1)[0]
    return first if len(first) <= _ERROR_CHARS else first[: _ERROR_CHARS - 3] + "..."


def _json(value: object) -> str | None:
    return json.dumps(value, ensure_ascii=False) if value else None
