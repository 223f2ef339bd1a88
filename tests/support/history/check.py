"""Runs the checks of all invariants on a history, and says what came of them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from support.history import check_record, check_state
from support.history.laws import LAWS, Law, Tally, Violation

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from support.history.model import History

MODULES = (check_state, check_record)
ORDER = [*(f"I{number}" for number in range(1, 19)), "L1"]
# Of one invariant a few violations are enough to see what it is; a hundred are a wall.
MOST = 20


@dataclass(frozen=True, slots=True)
class Verdict:
    """count: what was looked at. skipped: why it was not checked, or nothing."""

    law: Law
    violations: tuple[Violation, ...]
    count: int
    notes: tuple[str, ...] = ()
    skipped: str = ""


def check(history: History, only: Collection[str] = ()) -> list[Verdict]:
    """Check all invariants, or those that are named."""
    return [_verdict(history, law) for law in sorted(LAWS, key=_place) if not only or law.name in only]


def violations(verdicts: list[Verdict]) -> list[Violation]:
    return [violation for verdict in verdicts for violation in verdict.violations]


def report(verdicts: list[Verdict]) -> Iterator[str]:
    """Yield lines for people: a table of the invariants, then what is broken, with the events."""
    for verdict in verdicts:
        many = "at least " if len(verdict.violations) >= MOST else ""
        state = f"BROKEN {many}{len(verdict.violations)} times" if verdict.violations else "holds"
        if verdict.skipped:
            state = f"not checked: {verdict.skipped}"
        elif not verdict.count and not verdict.violations:
            state = "holds, and nothing of it was seen"
        notes = f" ({'; '.join(verdict.notes)})" if verdict.notes else ""
        yield f"{verdict.law.name:4} {verdict.count:9,}  {state}{notes}  - {verdict.law.text}"
    for violation in violations(verdicts):
        yield ""
        yield str(violation)


def _place(law: Law) -> int:
    return ORDER.index(law.name)


def _verdict(history: History, law: Law) -> Verdict:
    has = {
        "tables": bool(history.claims),
        "record": history.with_record,
        "audit": history.audited,
        "rest": history.moment("settled") is not None,
    }
    words = {
        "tables": "no tables",
        "record": "no record",
        "audit": "no flight recorder in the database",
        "rest": "not at rest",
    }
    lacks = [words[need] for need in sorted(law.needs) if not has[need]]
    if lacks:
        return Verdict(law, (), 0, skipped=", ".join(lacks))
    tally = Tally()
    found = tuple(itertools.islice(law.check(history, tally), MOST))
    return Verdict(law, found, tally.count, tuple(tally.notes))
