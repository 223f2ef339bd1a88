"""The result of a run, as a table for people or as one object for programs."""

from dataclasses import asdict
from typing import Any

from coordinator.cli import output
from coordinator.cli.demo.facts import wrong_carriers
from coordinator.cli.demo.flights import CarrierDelay
from coordinator.cli.demo.plan import LEASE_S, PARTITION_COUNT, PUBLISHER_COUNT, TOPIC
from coordinator.cli.demo.run import Report


def as_object(report: Report) -> dict[str, Any]:
    """Return what `--json` prints; names are part of the command's contract."""
    found = report.found
    return {
        "ok": report.ok,
        "topic": TOPIC,
        "partitions": PARTITION_COUNT,
        "messages": report.wanted.message_count,
        "published": asdict(found.published),
        "groups": {
            name: {
                "settled": group.settled_count,
                "lag": group.lag,
                "lost": report.wanted.message_count - group.seen_count,
                "deliveries": group.delivery_count,
                "duplicates": group.duplicate_count,
                "phantoms": group.phantom_count,
                "overtaken": group.overtaken_count,
            }
            for name, group in found.groups.items()
        },
        "kill": asdict(report.kill),
        "carriers": {carrier: asdict(delay) for carrier, delay in sorted(found.delays.items())},
        "wrong_carriers": wrong_carriers(report.wanted.delays, found.delays),
        "checks": [{**asdict(check), "ok": check.ok} for check in report.checks],
        "lease_s": LEASE_S,
        "elapsed_s": round(report.elapsed_s, 3),
    }


def print_report(report: Report) -> None:
    """Print what was done, the sums per carrier, and every check."""
    kill, options = report.kill, report.options
    output.line(
        f"{report.wanted.message_count:,} flights by {PUBLISHER_COUNT} processes through {PARTITION_COUNT} partitions "
        f"to {len(report.found.groups)} groups of {options.process_count} processes, in {report.elapsed_s:.1f} s."
    )
    output.line(
        f"{kill.process} was ended by SIGKILL inside its handler, with {kill.partition_count} partitions and "
        f"{kill.in_flight_count:,} messages in flight;"
    )
    output.line(
        f"the others took over after {kill.takeover_s:.1f} s (the lease is {LEASE_S:g} s here, less than the default)."
    )
    output.line("")
    output.table(
        ("GROUP", "DELIVERIES", "MESSAGES", "DUPLICATES", "LOST"),
        [
            (
                name,
                group.delivery_count,
                group.seen_count,
                group.duplicate_count,
                report.wanted.message_count - group.seen_count,
            )
            for name, group in report.found.groups.items()
        ],
    )
    output.line("")
    output.table(("CARRIER", "FLIGHTS", "ARRIVED", "DELAY-MIN", "FROM-FILE", "VERDICT"), _carrier_rows(report))
    output.line("")
    output.table(
        ("CHECK", "WANTED", "FOUND", "VERDICT"),
        [(check.name, check.wanted, check.found, _verdict(ok=check.ok)) for check in report.checks],
    )
    output.line("")
    output.line("everything adds up" if report.ok else "something does not add up")


def _carrier_rows(report: Report) -> list[tuple[object, ...]]:
    """One row per carrier that is in the table or in the file."""
    found, wanted = report.found.delays, report.wanted.delays
    none = CarrierDelay()
    return [
        (
            carrier,
            found.get(carrier, none).flights,
            found.get(carrier, none).arrived,
            found.get(carrier, none).delay_min,
            wanted.get(carrier, none).delay_min,
            _verdict(ok=found.get(carrier) == wanted.get(carrier)),
        )
        for carrier in sorted({*found, *wanted})
    ]


def _verdict(*, ok: bool) -> str:
    return "ok" if ok else "WRONG"
