"""What commands that change much have in common: they ask, and take times and reasons."""

from datetime import UTC, datetime

import click

from coordinator.cli import exits, output


def confirm(ctx: click.Context, question: str, *, yes: bool) -> None:
    """Ask, on standard error; without a yes the command ends here, with a finding."""
    if yes:
        return
    try:
        if click.confirm(question, err=True):
            return
    except click.Abort:
        output.note("")  # there is nobody to answer: end the line of the question
    output.note("nothing was done; --yes does it without a question")
    ctx.exit(exits.FINDING)


def time_option(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> datetime | None:
    """Read a time; one without a zone is in UTC, so that a command means the same on every machine."""
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.BadParameter(f"found {text!r}, wanted a time such as 2030-01-31T12:00:00Z") from error
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


reason_option = click.option("--reason", metavar="TEXT", help="Why; it is kept in the audit.")
yes_option = click.option("--yes", is_flag=True, help="Don't ask.")
