"""`coordinator lag`."""

import re
from typing import TYPE_CHECKING, Any

import click

from coordinator.cli import exits, output
from coordinator.cli.commands import Command, Options, pass_options
from coordinator.protocol.check import no_group

if TYPE_CHECKING:
    from coordinator.app import Coordinator

_UNITS_S = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d)?")


def _seconds(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> float | None:
    if text is None:
        return None
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise click.BadParameter(f"found {text!r}, wanted a time such as 60s, 5min or 2h")
    return float(found[1]) * _UNITS_S[found[2] or ""]


@click.command(
    cls=Command,
    examples=(
        "coordinator lag",
        "coordinator lag billing audit --max-lag 10000 --max-age 60s",
        "coordinator lag --max-age 5min --json || page-somebody",
        "coordinator lag --watch 2",
    ),
)
@click.argument("groups", nargs=-1, metavar="[GROUP]...")
@click.option("--max-lag", type=click.IntRange(min=0), metavar="N", help="Messages to settle, of a group in a topic.")
@click.option("--max-age", metavar="60s", callback=_seconds, help="Age of its oldest one; s, min, h or d.")
@output.watch_option
@pass_options
@click.pass_context
def lag(
    ctx: click.Context,
    options: Options,
    groups: tuple[str, ...],
    *,
    max_lag: int | None,
    max_age: float | None,
    watch_s: float | None,
) -> None:
    """Show how far groups are behind, per topic: how many messages they have to settle, and how old the oldest is.

    LAG is an upper bound, as in `groups describe`. RETRYING of these wait apart: failed, behind their key, or replayed. Dead
    letters are no lag. With --json one object a line for each group and topic.

    Exit code 1 if one of them is over --max-lag or --max-age; each is named on standard error.
    """
    over: list[str] = []
    with options.coordinator() as app:

        def show() -> None:
            rows = _rows(app, groups)
            over[:] = [text for row in rows for text in _over(row, max_lag, max_age)]
            _show(rows, as_json=options.as_json)
            for text in over:
                output.note(text)

        output.watch(show, watch_s)
    if over:
        ctx.exit(exits.FINDING)


def _rows(app: "Coordinator", groups: tuple[str, ...]) -> list[dict[str, Any]]:
    known = [group.name for group in app.groups()]
    for name in groups:
        if name not in known:
            raise no_group(name, known)
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for name in groups or known:
        ages = app.oldest_unsettled(name)
        for place in app.group_offsets(name):
            row = rows.setdefault(
                (name, place.topic),
                {
                    "group": name,
                    "topic": place.topic,
                    "lag": 0,
                    "max_partition_lag": 0,
                    "oldest_age_s": None,
                    "retrying": 0,
                    "owned": 0,
                    "partitions": 0,
                },
            )
            row["lag"] += place.lag
            row["max_partition_lag"] = max(row["max_partition_lag"], place.lag)
            row["retrying"] += place.parked
            row["owned"] += place.member_id is not None
            row["partitions"] += 1
            oldest = ages.get((place.topic, place.partition))
            if oldest is not None:
                row["oldest_age_s"] = max(row["oldest_age_s"] or 0.0, oldest.age_s)
    return sorted(rows.values(), key=lambda row: (-row["lag"], row["group"], row["topic"]))


def _show(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        for row in rows:
            output.json_object(row)
        return
    output.table(
        ("GROUP", "TOPIC", "LAG", "MAX-PARTITION-LAG", "AGE", "RETRYING", "OWNED", "PARTITIONS"),
        [
            (
                row["group"],
                row["topic"],
                row["lag"],
                row["max_partition_lag"],
                output.duration(row["oldest_age_s"]),
                row["retrying"],
                row["owned"],
                row["partitions"],
            )
            for row in rows
        ],
    )


def _over(row: dict[str, Any], max_lag: int | None, max_age: float | None) -> list[str]:
    what = f"group {row['group']} on {row['topic']}"
    found = []
    if max_lag is not None and row["lag"] > max_lag:
        found.append(f"{what}: lag {row['lag']} is over {max_lag}")
    if max_age is not None and (row["oldest_age_s"] or 0) > max_age:
        found.append(f"{what}: the oldest message is {row['oldest_age_s']:.1f} s old, over {max_age:g} s")
    return found
