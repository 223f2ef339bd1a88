"""`coordinator health`."""

import click

from coordinator.cli import exits, output
from coordinator.cli.commands import Command, FiniteRange, Options, pass_options


@click.command(
    cls=Command,
    examples=(
        "coordinator health",
        "coordinator health --live --url http://127.0.0.1:9187",
        "coordinator health --ready --group billing --max-lag 10000 --max-age 60",
        "coordinator health --max-dead-letters 0 --json",
    ),
)
@click.option("--live", "kind", flag_value="live", help="Only: would a restart help?")
@click.option("--ready", "kind", flag_value="ready", default=True, help="Everything that is wrong; the default.")
@click.option("--url", metavar="URL", help="Ask a process that serves there (serve, run --metrics-port), too.")
@click.option("--group", metavar="NAME", help="Only this group; else all.")
@click.option("--max-lag", type=click.IntRange(min=0), help="Messages that a group has not settled.")
@click.option("--max-age", type=FiniteRange(min=0), metavar="SECONDS", help="Age of its oldest one.")
@click.option("--max-in-flight", type=click.IntRange(min=0), help="Messages in its open windows.")
@click.option("--max-dead-letters", type=click.IntRange(min=0), help="Dead letters it has.")
@pass_options
@click.pass_context
def health(
    ctx: click.Context,
    options: Options,
    *,
    kind: str,
    url: str | None,
    group: str | None,
    max_lag: int | None,
    max_age: float | None,
    max_in_flight: int | None,
    max_dead_letters: int | None,
) -> None:
    """Say whether all is well, and what is not.

    --ready looks at the database: it answers, speaks this protocol, every group with messages to settle has members, none of
    its partitions is without an owner, and no limit that was given is passed. With --url the process there is asked as well.

    --live asks the process at --url alone, whether a loop of it has ended; without --url it asks whether the database answers.

    Exit code 1 with the reasons, 3 where there is no database.
    """
    # Here and not above: --help does without.
    from coordinator.observe.health import Limits, body  # noqa: PLC0415

    reasons: list[dict[str, str]] = _asked(url, kind) if url is not None else []
    if kind == "ready":
        limits = Limits(max_lag, max_age, max_in_flight, max_dead_letters)
        with options.coordinator() as app:
            reasons += body(app.health(limits, group))["reasons"]
    elif url is None:
        with options.coordinator() as app:
            app.groups()
    if options.as_json:
        output.json_object({"status": "red" if reasons else "green", "reasons": reasons})
    else:
        output.line("red" if reasons else "green")
        for reason in reasons:
            output.line(f"{reason['code']}: {reason['reason']}")
    if reasons:
        ctx.exit(exits.FINDING)


def _asked(url: str, kind: str) -> list[dict[str, str]]:
    """Ask a process over HTTP; one that does not answer as it should is a finding."""
    import json  # noqa: PLC0415 - as above
    from urllib.error import HTTPError, URLError  # noqa: PLC0415
    from urllib.request import urlopen  # noqa: PLC0415

    if not url.startswith(("http://", "https://")):
        raise click.UsageError(f"--url: found {url!r}, wanted http://HOST:PORT")
    address = f"{url.rstrip('/')}/{kind}z"
    try:
        with urlopen(address, timeout=5.0) as answer:  # noqa: S310 - the scheme was looked at
            content = answer.read()
    except HTTPError as error:
        content = error.read()
    except (URLError, OSError) as error:
        return [{"code": "no_answer", "reason": f"{address}: {getattr(error, 'reason', error)}"}]
    try:
        return [{"code": str(item["code"]), "reason": str(item["reason"])} for item in json.loads(content)["reasons"]]
    except (ValueError, TypeError, KeyError):
        return [{"code": "no_answer", "reason": f"{address} answers, but not as a coordinator does"}]
