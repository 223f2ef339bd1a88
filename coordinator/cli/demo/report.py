"""The result of a run, as a table for people or as one object for programs."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from coordinator.cli import output
from coordinator.cli.demo.facts import DeadLetter, wrong_carriers
from coordinator.cli.demo.flights import CarrierDelay
from coordinator.cli.demo.plan import (
    AUDIT,
    CONCURRENCY,
    DELAYS,
    LEASE_S,
    MAX_CRASHES,
    PARTITION_COUNT,
    PREFETCH,
    PUBLISHER_COUNT,
    RETRY_S,
    TOPIC,
)
from coordinator.cli.demo.run import Report
from coordinator.settings import Settings


def as_object(report: Report) -> dict[str, Any]:
    """Return what `--json` prints; names are part of the command's contract. Messages are told by their flight's number."""
    wanted, found = report.wanted, report.found
    return {
        "ok": report.ok,
        "topic": TOPIC,
        "partitions": PARTITION_COUNT,
        "messages": wanted.message_count,
        "published": asdict(found.published),
        "groups": {
            name: {
                "settled": group.settled_count,
                "lag": group.lag,
                "lost": found.lost_count(wanted, name),
                "deliveries": group.delivery_count,
                "duplicates": group.duplicate_count,
                "phantoms": group.phantom_count,
                "overtaken": group.overtaken_count,
            }
            for name, group in found.groups.items()
        },
        "effects": {
            "count": len(found.effects.nrs),
            "wanted": wanted.effect_count,
            "duplicates": found.effects.repeated_count,
            "overtaken": found.effects.overtaken_count,
        },
        "kill": asdict(report.kill),
        "poison": {"nr": wanted.poison_nr, "deaths": [asdict(death) for death in report.deaths]},
        "dead_letters": [asdict(letter) for letter in found.dead_before],
        "dead_letters_left": len(found.dead_after),
        "replay": {
            "wanted": list(wanted.replayed_nrs),
            "given_back": found.replay.given_back,
            "delivered": {group: list(nrs) for group, nrs in found.replay.nrs_by_group.items()},
            "lag": found.replay.lag,
        },
        "carriers": {carrier: asdict(delay) for carrier, delay in sorted(found.delays.items())},
        "wrong_carriers": wrong_carriers(wanted.delays, found.delays),
        "checks": [{**asdict(check), "ok": check.ok} for check in report.checks],
        "settings": {
            "lease_s": LEASE_S,
            "prefetch": PREFETCH,
            "retry_s": RETRY_S,
            "max_crashes": MAX_CRASHES,
            "concurrency": CONCURRENCY,
        },
        "elapsed_s": round(report.elapsed_s, 3),
    }


def print_report(report: Report) -> None:
    """Print what was done, the sums per carrier, the dead letters, and every check."""
    for line in _story(report):
        output.line(line)
    output.line("")
    output.table(("GROUP", "DELIVERIES", "MESSAGES", "DUPLICATES", "EFFECTS", "LOST"), _group_rows(report))
    output.line("")
    output.table(
        ("CARRIER", "FLIGHTS", "ARRIVED", "DELAY-MIN", "CANCELLED", "FROM-FILE", "VERDICT"), _carrier_rows(report)
    )
    output.line("")
    output.table(("DEAD-LETTERS", "FLIGHTS", "EXAMPLE", "ATTEMPTS", "CRASHES"), _letter_rows(report.found.dead_before))
    output.line("")
    output.table(
        ("CHECK", "WANTED", "FOUND", "VERDICT"),
        [(check.name, check.wanted, check.found, _verdict(ok=check.ok)) for check in report.checks],
    )
    output.line("")
    output.line("everything adds up" if report.ok else "something does not add up")


def _story(report: Report) -> Iterable[str]:
    kill, options, wanted, usual = report.kill, report.options, report.wanted, Settings()
    yield (
        f"{wanted.message_count:,} flights by {PUBLISHER_COUNT} processes through {PARTITION_COUNT} partitions "
        f"to {len(report.found.groups)} groups of {options.process_count} processes, in {report.elapsed_s:.1f} s."
    )
    yield (
        f"{kill.process} was ended by SIGKILL inside its transaction, with {kill.partition_count} partitions and "
        f"{kill.in_flight_count:,} messages in flight;"
    )
    yield f"others took over after {kill.takeover_s:.1f} s. {kill.replaced_by} was started in its place."
    ended = ", ".join(death.process for death in report.deaths) or "no process"
    yield f"Flight {wanted.poison_nr} kills every process that handles it: it ended {ended}; each was replaced."
    yield (
        f"{len(wanted.replayed_nrs)} cancelled flights were replayed from the dead letters, to a handler that counts them."
    )
    yield (
        f"Shortened, to be quick to watch: lease {LEASE_S:g} s (default {usual.lease_s:g}), read ahead {PREFETCH} messages "
        f"({usual.prefetch}), pause after a crash {RETRY_S:g} s (1)."
    )


def _group_rows(report: Report) -> list[tuple[object, ...]]:
    found = report.found
    effects = {AUDIT: None, DELAYS: len(found.effects.nrs)}
    return [
        (
            name,
            group.delivery_count,
            group.seen_count,
            group.duplicate_count,
            effects[name],
            found.lost_count(report.wanted, name),
        )
        for name, group in found.groups.items()
    ]


def _letter_rows(letters: Sequence[DeadLetter]) -> list[tuple[object, ...]]:
    """One row per reason."""
    by_reason: dict[str, list[DeadLetter]] = {}
    for letter in letters:
        by_reason.setdefault(letter.reason, []).append(letter)
    return [
        (reason, len(some), some[0].error, some[0].attempts, some[0].crashes)
        for reason, some in sorted(by_reason.items(), key=lambda pair: -len(pair[1]))
    ]


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
            found.get(carrier, none).cancelled,
            wanted.get(carrier, none).delay_min,
            _verdict(ok=found.get(carrier) == wanted.get(carrier)),
        )
        for carrier in sorted({*found, *wanted})
    ]


def _verdict(*, ok: bool) -> str:
    return "ok" if ok else "WRONG"
