"""`coordinator bench`: parse, run, print."""

from dataclasses import asdict
from typing import Any

import click

from coordinator.cli import exits, output
from coordinator.cli.bench import fanout as fanout_side
from coordinator.cli.bench.run import WANTED_SUBSCRIBE_RATIO, Options, Report, run
from coordinator.cli.bench.scaling import Plan, Point
from coordinator.cli.bench.scaling import run as run_scaling
from coordinator.cli.bench.stats import Case, Spread
from coordinator.cli.commands import Group, pass_options
from coordinator.cli.commands import Options as GlobalOptions
from coordinator.cli.database import database
from coordinator.cli.events import show_events


@click.group(
    cls=Group,
    invoke_without_command=True,
    examples=(
        "coordinator bench --embedded",
        "coordinator bench --messages 200000 --payload-bytes 1000 --repeat 7",
        "coordinator bench --json",
        "coordinator bench scaling",
    ),
)
@click.option(
    "--messages", type=click.IntRange(min=2000), default=50_000, show_default=True, help="Messages in each repeat."
)
@click.option(
    "--payload-bytes", type=click.IntRange(12, 1_000_000), default=200, show_default=True, help="Size of each message."
)
@click.option(
    "--partitions", type=click.IntRange(1, 256), default=8, show_default=True, help="Partitions of the topics."
)
@click.option(
    "--repeat", type=click.IntRange(min=1), default=5, show_default=True, help="How often everything is measured."
)
@click.option("--keep", is_flag=True, help="Leave the schemas coordinator_bench and coordinator_bench_bare behind.")
@pass_options
@click.pass_context
def bench(
    ctx: click.Context,
    options: GlobalOptions,
    messages: int,
    payload_bytes: int,
    partitions: int,
    repeat: int,
    keep: bool,
) -> None:
    """Measure what this database can do, and compare with a bare table.

    Publishes one by one and 1,000 a call, consumes by one process that acks every message (in batches, in a loop, and by a
    subscribed handler that does nothing; key order, default settings), and measures the time from publish to receipt on
    an idle topic. In the same repeats the same rows go into a plain table, and out of it by
    pages, with the same driver: the ratio says what the product costs. Exit code 1 if a message was lost.

    Uses the schemas coordinator_bench and coordinator_bench_bare, which are dropped before and after.
    """
    if options.schema is not None:
        raise click.UsageError("the bench has schemas of its own; leave out --schema")
    if ctx.invoked_subcommand is not None:
        return
    show_events(verbose=options.verbose)
    with database(options) as dsn:
        report = run(Options(dsn, messages, payload_bytes, partitions, repeat, keep), output.note)
    if options.as_json:
        output.json_object(_object(report))
    else:
        _print(report)
    ctx.exit(exits.OK if report.ok else exits.FINDING)


def _numbers(_ctx: click.Context, _parameter: click.Parameter, text: str) -> list[int]:
    try:
        numbers = [int(word) for word in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise click.BadParameter(f"found {text!r}, wanted numbers from 1 on with commas between them")
    return numbers


def _windows(ctx: click.Context, parameter: click.Parameter, text: str) -> list[int | None]:
    return [None if word == "auto" else _numbers(ctx, parameter, word)[0] for word in text.split(",")]


@bench.command(
    examples=(
        "coordinator bench scaling --embedded",
        "coordinator bench scaling --consumers 1,2,4 --prefetch auto --messages 100000 --json",
    ),
)
@click.option(
    "--consumers", default="3,5,10,20,50", show_default=True, callback=_numbers, help="Consumers of the one group."
)
@click.option(
    "--prefetch",
    default="5,50,auto",
    show_default=True,
    callback=_windows,
    help="The most messages read ahead per partition; auto leaves it to the consumer.",
)
@click.option(
    "--messages", default="5000,500000", show_default=True, callback=_numbers, help="Messages in each measurement."
)
@click.option(
    "--payload-bytes", type=click.IntRange(12, 1_000_000), default=200, show_default=True, help="Size of each message."
)
@click.option(
    "--partitions",
    type=click.IntRange(1, 256),
    default=16,
    show_default=True,
    help="Partitions of the topics; at least one for each consumer.",
)
@click.option("--keep", is_flag=True, help="Leave the schema coordinator_bench behind.")
@pass_options
@click.pass_context
def scaling(
    ctx: click.Context,
    options: GlobalOptions,
    consumers: list[int],
    prefetch: list[int | None],
    messages: list[int],
    payload_bytes: int,
    partitions: int,
    keep: bool,
) -> None:
    """Measure many consumers of one group: every count of them with every window and every number of messages.

    The consumers are threads of as many processes as there are processors, each with connections of its own (two or three of
    the server's). Once every partition has its owner, messages are published 1,000 a call, while they are consumed;
    each is acked. Times are from before a message's call of publish until it is in hand. Exit code 1 if a message was lost.

    Uses the schema coordinator_bench, which is dropped before and after.
    """
    show_events(verbose=options.verbose)
    with database(options) as dsn:
        points = run_scaling(Plan(dsn, consumers, prefetch, messages, payload_bytes, partitions, keep), output.note)
    ok = not any(point.lost for point in points)
    if options.as_json:
        output.json_object({"ok": ok, "payload_bytes": payload_bytes, "points": [asdict(point) for point in points]})
    else:
        output.table(
            ("MESSAGES", "CONSUMERS", "PREFETCH", "MESSAGES/S", "AVG-MS", "P50-MS", "P99-MS", "LOST", "AGAIN"),
            [_scaling_row(point) for point in points],
        )
    ctx.exit(exits.OK if ok else exits.FINDING)


@bench.command(
    examples=(
        "coordinator bench fanout --embedded",
        "coordinator bench fanout --groups 1 --members 1,2 --messages 400000",
        "coordinator bench fanout --groups 1,8 --json",
    ),
)
@click.option("--groups", default="1,4", show_default=True, callback=_numbers, help="Groups that each read everything.")
@click.option("--members", default="1", show_default=True, callback=_numbers, help="Processes of each group.")
@click.option(
    "--messages", type=click.IntRange(min=2000), default=100_000, show_default=True, help="Messages in each repeat."
)
@click.option(
    "--payload-bytes", type=click.IntRange(12, 1_000_000), default=200, show_default=True, help="Size of each message."
)
@click.option(
    "--partitions", type=click.IntRange(1, 256), default=8, show_default=True, help="Partitions of the topics."
)
@click.option(
    "--repeat", type=click.IntRange(min=1), default=3, show_default=True, help="How often everything is measured."
)
@click.option("--keep", is_flag=True, help="Leave the schemas coordinator_bench and coordinator_bench_bare behind.")
@pass_options
@click.pass_context
def fanout(
    ctx: click.Context,
    options: GlobalOptions,
    groups: list[int],
    members: list[int],
    messages: int,
    payload_bytes: int,
    partitions: int,
    repeat: int,
    keep: bool,
) -> None:
    """Measure groups that each read everything, beside as many cursors over a bare table.

    A backlog is published, 1,000 a call, then read by every group at the same time, each member a process that acks every
    message. CPU and WAL are for each published message, publishing and reading by all groups together; CPU is that of clients and
    server. Exit code 1 if a message was lost.

    Uses the schemas coordinator_bench and coordinator_bench_bare, which are dropped before and after.
    """
    show_events(verbose=options.verbose)
    if max(members) > partitions:
        raise click.UsageError(f"{max(members)} members cannot share {partitions} partitions: wanted one each at least")
    with database(options) as dsn:
        plan = fanout_side.Plan(dsn, groups, members, messages, payload_bytes, partitions, repeat, keep)
        points = fanout_side.run(plan, output.note)
    ok = not any(point.lost for point in points)
    if options.as_json:
        output.json_object(
            {
                "ok": ok,
                "messages": messages,
                "payload_bytes": payload_bytes,
                "partitions": partitions,
                "repeat": repeat,
                "points": [asdict(point) for point in points],
            }
        )
    else:
        output.table(
            (
                "GROUPS",
                "MEMBERS",
                "DELIVERIES/S",
                "BARE",
                "OURS/BARE",
                "CPU-US",
                "BARE",
                "OURS/BARE",
                "WAL-BYTES",
                "BARE",
                "OURS/BARE",
                "LOST",
                "AGAIN",
            ),
            [_fanout_row(point) for point in points],
        )
    ctx.exit(exits.OK if ok else exits.FINDING)


def _fanout_row(point: fanout_side.Point) -> tuple[object, ...]:
    ours, bare = point.ours, point.bare
    return (
        point.groups,
        point.members,
        _spread(ours.rate, ",.0f"),
        _spread(bare.rate if bare else None, ",.0f"),
        _spread(point.rate_ratio, ".2f"),
        _spread(ours.cpu_us, ".1f"),
        _spread(bare.cpu_us if bare else None, ".1f"),
        _spread(point.cpu_ratio, ".2f"),
        _spread(ours.wal_bytes, ".0f"),
        _spread(bare.wal_bytes if bare else None, ".0f"),
        _spread(point.wal_ratio, ".2f"),
        point.lost,
        point.duplicates,
    )


def _spread(spread: Spread | None, form: str) -> str | None:
    if spread is None:
        return None
    return f"{spread.median:{form}} ({spread.low:{form}} to {spread.high:{form}})"


def _scaling_row(point: Point) -> tuple[object, ...]:
    return (
        point.messages,
        point.consumers,
        "auto" if point.prefetch is None else point.prefetch,
        f"{point.rate:,.0f}",
        f"{point.average_ms:,.1f}",
        f"{point.p50_ms:,.1f}",
        f"{point.p99_ms:,.1f}",
        point.lost,
        point.duplicates,
    )


def _object(report: Report) -> dict[str, Any]:
    """Return what `--json` prints; names are part of the command's contract. Rates are messages a second."""
    options = report.options
    return {
        "ok": report.ok,
        "messages": options.message_count,
        "payload_bytes": options.payload_bytes,
        "partitions": options.partition_count,
        "repeat": options.repeat_count,
        "server_version": report.server_version,
        "cases": {case.name.replace(" ", "_"): {**asdict(case), "below": case.is_below} for case in report.cases},
        "subscribe_to_iterator": {
            **asdict(report.subscribe_ratio),
            "wanted_ratio": WANTED_SUBSCRIBE_RATIO,
            "below": report.subscribe_is_below,
        },
        "latency_p50_ms": report.latency_p50_ms,
        "latency_p99_ms": report.latency_p99_ms,
        "latency_max_ms": report.latency_max_ms,
        "lost": report.lost_count,
        "duplicates": report.duplicate_count,
    }


def _print(report: Report) -> None:
    options = report.options
    output.line(
        f"{options.message_count:,} messages of {options.payload_bytes:,} bytes, {options.partition_count} partitions, "
        f"{options.repeat_count} repeats: median (lowest to highest), messages a second"
    )
    output.line("")
    output.table(
        ("CASE", "OURS", "BARE", "OURS/BARE", "AIM", "P50-MS", "P99-MS"), [_row(case) for case in report.cases]
    )
    output.line("")
    ratio, missed = report.subscribe_ratio, " MISSED" if report.subscribe_is_below else ""
    output.line(
        f"subscribe in relation to the iterator: {ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f}), "
        f"aim >= {WANTED_SUBSCRIBE_RATIO:g}{missed}"
    )
    output.line(
        f"latency on an idle topic, publish to receipt: p50 {report.latency_p50_ms:.2f} ms, "
        f"p99 {report.latency_p99_ms:.2f} ms, max {report.latency_max_ms:.2f} ms"
    )
    output.line(f"lost {report.lost_count}, delivered again {report.duplicate_count}")


def _row(case: Case) -> tuple[object, ...]:
    aim = None if case.wanted_ratio is None else f">= {case.wanted_ratio:g}" + (" MISSED" if case.is_below else "")
    return (
        case.name,
        _spread(case.ours, ",.0f"),
        _spread(case.bare, ",.0f"),
        _spread(case.ratio, ".2f"),
        aim,
        None if case.ours_p50_ms is None else f"{case.ours_p50_ms:.2f}",
        None if case.ours_p99_ms is None else f"{case.ours_p99_ms:.2f}",
    )
