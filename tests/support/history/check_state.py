"""Invariants that any committed state must have: those marked C in coordinator/README.md."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from support.history.laws import CLOCK_S, Tally, Violation, around, at, law, runs_of, settled_at
from support.history.model import FOREVER, stamp

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.history.model import ClaimState, History


@law("I1", "every offset is in exactly one state", "tables")
def one_state(history: History, tally: Tally) -> Iterator[Violation]:
    """Only offsets with a row of their own can be in two states; that none is left out is I2's and I16's arithmetic."""
    for key, state in history.claims.items():
        rows = history.rows.get((key.topic, key.partition))
        acks = {offset for offset, _ in state.acks}
        tally.count += state.high + 1 - state.start_offset
        for offset in {*state.retries, *state.letters, *acks}:
            states = []
            if offset in acks:
                # An acks row outranks a retries row; a dead letter of a transactional group takes one first.
                states.append("dead" if offset in state.letters else "acked")
            else:
                if not state.settled(offset):
                    states.append("future" if offset >= state.hwm else "open")
                if offset in state.retries:
                    states.append("parked")
                if offset in state.letters:
                    states.append("dead")
            if len(states) != 1:
                yield Violation(
                    "I1", at(key, offset), f"is {' and '.join(states)} at the same time", runs_of(history, key, offset)
                )
            retry = state.retries.get(offset)
            missing = (
                rows is not None
                and offset not in rows
                and not (retry is not None and retry.with_payload)
                and offset not in state.letters
            )
            if missing or not state.start_offset <= offset <= state.high:
                yield Violation(
                    "I1",
                    at(key, offset),
                    f"is {' and '.join(states)}, and there is no such message (offsets {state.start_offset} to {state.high})",
                )


@law("I2", "start <= committed <= hwm <= end; done above committed; parked is done or below; no stale rows", "tables")
def bounds(history: History, tally: Tally) -> Iterator[Violation]:
    for key, state in history.claims.items():
        tally.count += 1
        numbers = f"start {state.start_offset}, committed {state.committed}, hwm {state.hwm}, end {state.high + 1}"
        if not state.start_offset <= state.committed <= state.hwm <= state.high + 1:
            yield Violation("I2", str(key), f"out of order: {numbers}")
        if state.done and (state.done[0][0] <= state.committed or state.done[-1][1] > state.high + 1):
            yield Violation(
                "I2",
                str(key),
                f"done {state.done[0]} to {state.done[-1]} is not above committed, or past the end: {numbers}",
            )
        if any(low[1] >= high[0] for low, high in zip(state.done, state.done[1:], strict=False)):
            yield Violation("I2", str(key), f"done is not normalised: {state.done}")
        for offset in state.retries:
            if not state.settled(offset):
                yield Violation("I2", at(key, offset), f"is parked, and neither done nor below committed: {numbers}")
        for offset, epoch in state.acks:
            if epoch != state.epoch:
                yield Violation(
                    "I2", at(key, offset), f"has an acks row of epoch {epoch}, and the claim is at {state.epoch}"
                )


@law("I2", "at every commit: what is parked is done or below committed", "tables", "audit")
def parked_is_done(history: History, tally: Tally) -> Iterator[Violation]:
    """The row and the progress that lets the offset be passed are of one transaction."""
    for key, state in history.claims.items():
        when = settled_at(state)
        for version in state.parked:
            if version.op == "insert" and not version.replays:
                tally.count += 1
                if when.get(version.offset, FOREVER) > version.commit_at + CLOCK_S:
                    yield Violation(
                        "I2",
                        at(key, version.offset),
                        f"was parked at {stamp(version.commit_at)}, and neither done nor below committed before "
                        f"{stamp(when.get(version.offset, FOREVER))}",
                        (*around(state, version.commit_at), *runs_of(history, key, version.offset)),
                    )


@law("I12", "a dead letter exists just for a dead message, once, with the payload that was published", "tables")
def letters(history: History, tally: Tally) -> Iterator[Violation]:
    for key, state in history.claims.items():
        rows = history.rows.get((key.topic, key.partition), {})
        acked = _acked_for_sure(history, key)
        for offset, letter in state.letters.items():
            tally.count += 1
            row = rows.get(offset)
            if row is not None and row.payload != letter.payload:
                yield Violation(
                    "I12",
                    at(key, offset),
                    f"died with the payload {letter.payload!r}, and was published with {row.payload!r}",
                )
            if not state.settled(offset):
                yield Violation(
                    "I12", at(key, offset), "has a dead letter, and is not settled", runs_of(history, key, offset)
                )
            if offset in acked:
                yield Violation(
                    "I12", at(key, offset), "has a dead letter, and was acked", runs_of(history, key, offset)
                )
        yield from _lost_letters(history, state, key)


def _acked_for_sure(history: History, key: object) -> set[int]:
    return {run.offset for run in history.runs.get(key, ()) if run.told == "returned"}  # type: ignore[call-overload]


def _lost_letters(history: History, state: ClaimState, key: object) -> Iterator[Violation]:
    """What was buried and not taken out again is there."""
    balance: Counter[int] = Counter()
    for buried in state.buried:
        balance[buried.offset] += {"insert": 1, "delete": -1}.get(buried.op, 0)
    for offset, count in balance.items():
        if count != (offset in state.letters):
            yield Violation(
                "I12",
                at(key, offset),  # type: ignore[arg-type]
                f"was buried {count} times more than dug up, and {int(offset in state.letters)} dead letters are there",
            )


@law("I16", "lag is never negative, and is what is unsettled, plus what is not yet proven burnt or folded", "tables")
def lag(history: History, tally: Tally) -> Iterator[Violation]:
    for key, state in history.claims.items():
        rows = history.rows.get((key.topic, key.partition), {})
        tally.count += 1
        folded = {offset for offset, _ in state.acks}
        unsettled = len(state.retries.keys() - folded)
        unproven = unfolded = place = 0
        done = state.done
        for offset in range(state.committed, state.high + 1):
            while place < len(done) and done[place][1] <= offset:
                place += 1
            if place < len(done) and done[place][0] <= offset:
                continue
            if offset in folded:
                unfolded += 1
            elif offset in rows:
                unsettled += 1
            else:
                unproven += 1
        if state.lag < 0 or state.lag != unsettled + unproven + unfolded:
            yield Violation(
                "I16",
                str(key),
                f"the view says lag {state.lag}; there are {unsettled} unsettled, {unproven} not yet proven burnt, "
                f"{unfolded} acked by handlers and not yet folded",
            )


@law("I18", "effects of a transactional handler and its ack are both there, once, or both not", "tables", "audit")
def effects(history: History, tally: Tally) -> Iterator[Violation]:
    """An effect is there just where an ack was committed in the same transaction."""
    found = Counter(history.effects)
    for key, state in history.claims.items():
        if not history.reads(key.group).get("transactional"):
            continue
        # A dead letter takes an acks row, too; it has no effect.
        acked = {ack.offset for ack in state.acked} - {buried.offset for buried in state.buried}
        dead = {buried.offset for buried in state.buried}
        effective = {offset: count for (*place, offset), count in found.items() if tuple(place) == tuple(key)}
        tally.count += len(acked)
        for offset, count in effective.items():
            if count != 1:
                yield Violation("I18", at(key, offset), f"took effect {count} times", runs_of(history, key, offset))
            if offset not in acked and offset not in dead:
                yield Violation(
                    "I18", at(key, offset), "took effect, and its ack is not there", runs_of(history, key, offset)
                )
        handled = {
            offset
            for offset in history.rows.get((key.topic, key.partition), {})
            if offset >= state.start_offset and state.settled(offset) and offset not in state.retries
        } - dead
        for offset in handled - acked - effective.keys():
            if not any(lo <= offset < hi for lo, hi in state.skipped):
                yield Violation(
                    "I18",
                    at(key, offset),
                    "counts as handled, without an effect and an ack",
                    runs_of(history, key, offset),
                )
        for offset in acked - effective.keys():
            yield Violation(
                "I18", at(key, offset), "was acked, and its effect is not there", runs_of(history, key, offset)
            )
