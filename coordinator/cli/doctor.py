"""`coordinator doctor`."""

from typing import TYPE_CHECKING

import click

from coordinator.cli import exits, output
from coordinator.cli.commands import Command, FiniteRange, Options, pass_options

if TYPE_CHECKING:
    from coordinator.doctor import Report


def _known(_ctx: click.Context, _parameter: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    from coordinator.doctor import CHECKS  # noqa: PLC0415 - heavy

    for name in names:
        if name not in CHECKS:
            raise click.BadParameter(f"found {name!r}, wanted one of {', '.join(CHECKS)}")
    return names


@click.command(
    cls=Command,
    examples=(
        "coordinator doctor",
        "coordinator doctor --json | jq '.findings[] | select(.severity == \"error\")'",
        "coordinator doctor --check sequences --check segments    # after a restore",
        "coordinator doctor --max-snapshot-age 3600",
    ),
)
@click.option("--check", "only", multiple=True, callback=_known, metavar="NAME", help="Only this one; repeatable.")
@click.option("--without", multiple=True, callback=_known, metavar="NAME", help="All but this one; repeatable.")
@click.option(
    "--max-snapshot-age",
    type=FiniteRange(min=0),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="How old the oldest snapshot may be: longer than your longest report or dump.",
)
@click.option(
    "--max-idle",
    type=FiniteRange(min=0),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a group may have messages and no members.",
)
@pass_options
@click.pass_context
def doctor(
    ctx: click.Context,
    options: Options,
    *,
    only: tuple[str, ...],
    without: tuple[str, ...],
    max_snapshot_age: float,
    max_idle: float,
) -> None:
    """Look for what is wrong with the schema, the server, the log and its groups; say what to do.

    Any role that may use the schema can ask. What it may not see is told on standard error as not checked: the role that
    owns the schema, as a member of pg_monitor, sees all. Nothing is changed.

    Exit code 1 with findings, 0 without. error: messages are lost, held up or refused, or soon will be; warning: it gets
    slower or larger.
    """
    from coordinator.doctor import Limits, examine  # noqa: PLC0415 - heavy

    limits = Limits(max_snapshot_age_s=max_snapshot_age, max_idle_s=max_idle)
    with options.server() as dsn:
        report = examine(dsn, options.schema_name(), only=only, without=without, limits=limits)
    if options.as_json:
        output.json_object({"ok": report.ok, **output.plain(report)})
    else:
        _show(report)
    if not report.ok:
        ctx.exit(exits.FINDING)


def _show(report: "Report") -> None:
    if report.findings:
        output.table(
            ("SEVERITY", "CHECK", "SUBJECT", "FOUND", "WHAT-TO-DO"),
            [(item.severity, item.check, item.subject, item.found, item.advice) for item in report.findings],
        )
    for skipped in report.skipped:
        output.note(f"not checked: {skipped.check}: {skipped.reason}")
    output.note(
        f"{output.counted(len(report.checked), 'check')}, {output.counted(len(report.findings), 'finding')}, "
        f"{len(report.skipped)} not checked" + (": what they would have found is not known" if report.skipped else "")
    )
