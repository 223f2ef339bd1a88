"""Invariants of a recorded history: those marked T in coordinator/README.md, and L1 once everything has come to rest."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from support.history.laws import (
    CLOCK_S,
    Tally,
    Violation,
    Windows,
    at,
    by_offset,
    describe,
    law,
    ranges_without,
    replayed,
    runs_of,
    settled_at,
    whole,
)
from support.history.model import FOREVER, ClaimKey, ClaimState, History, Process, Run, stamp

if TYPE_CHECKING:
    from collections.abc import Iterator

# A restart takes a while, and is announced before.
FAULT_LASTS_S = 10.0
# The reason of a dead letter that has used up its crashes.
CRASH = "crash"
REFUSALS = ("StaleEpochError", "AlreadySettledError", "MemberDeadError", "FencedError")


@law(
    "I3",
    "committed passes nothing that is neither settled nor parked, and never moves back",
    "tables",
    "record",
    "audit",
)
def committed_advances(history: History, tally: Tally) -> Iterator[Violation]:
    """A message counts as settled once a handler has announced its ack, or it is a dead letter, parked, or skipped."""
    for key, state in history.claims.items():
        rows = history.rows.get((key.topic, key.partition), {})
        reasons = _reasons(history, key, state)
        before, last = (), None
        for row in state.progress:
            now = whole(row, state.start_offset)
            if last is not None and last.resets == row.resets:
                lost = list(ranges_without(before, now))
                if row.committed < last.committed or lost:
                    yield Violation(
                        "I3",
                        str(key),
                        f"moved back from {last.committed} to {row.committed}, or forgot {lost[:5]}",
                        (describe(last), describe(row)),
                    )
                for lo, hi in ranges_without(now, before):
                    for offset in range(lo, hi):
                        tally.count += 1
                        if offset in rows and reasons.get(offset, FOREVER) > row.commit_at + CLOCK_S:
                            yield Violation(
                                "I3",
                                at(key, offset),
                                "became settled, and no handler had acked it, nor is it dead, parked or skipped",
                                (describe(row), *runs_of(history, key, offset)),
                            )
            before, last = now, row


def _reasons(history: History, key: ClaimKey, state: ClaimState) -> dict[int, float]:
    """Since when there is a reason for each offset to count as settled, or parked."""
    found: dict[int, float] = {}

    def note(offset: int, since: float) -> None:
        found[offset] = min(found.get(offset, FOREVER), since)

    for run in (*history.runs.get(key, ()), *history.doubtful.get(key, ())):
        if run.end == "ack":
            note(run.offset, run.end_at)
    for version in state.parked:
        if version.op == "insert":
            note(version.offset, version.commit_at)
    for buried in state.buried:
        note(buried.offset, buried.commit_at)
    for lo, hi in state.skipped:
        for offset in range(lo, hi):
            note(offset, -FOREVER)
    return found


@law(
    "I4",
    "no message is lost: each committed publish is delivered to each group until it is settled",
    "tables",
    "record",
)
def nothing_lost(history: History, tally: Tally) -> Iterator[Violation]:
    yield from _published(history, tally)
    for key, state in history.claims.items():
        rows = history.rows.get((key.topic, key.partition), {})
        started: dict[int, str] = {}
        acked, skipped = set(), state.skipped
        for run in history.runs.get(key, ()):
            started[run.offset] = run.value
            if run.end == "ack":
                acked.add(run.offset)
        acked.update(run.offset for run in history.doubtful.get(key, ()) if run.end == "ack")
        for offset, row in rows.items():
            if offset < state.start_offset or any(lo <= offset < hi for lo, hi in skipped):
                continue
            tally.count += 1
            if not state.settled(offset):
                if history.moment("settled") is not None:
                    yield Violation(
                        "I4", at(key, offset), f"{row.value} was never settled", runs_of(history, key, offset)
                    )
                continue
            gone = offset not in acked and offset not in state.letters and offset not in state.retries
            if gone and not any(buried.offset == offset for buried in state.buried):
                yield Violation(
                    "I4",
                    at(key, offset),
                    f"{row.value} is lost: it counts as settled, and no handler has acked it",
                    runs_of(history, key, offset),
                )
        for offset, value in started.items():
            if offset not in rows or rows[offset].value != value:
                found = rows[offset].value if offset in rows else "nothing"
                yield Violation(
                    "I4",
                    at(key, offset),
                    f"{value} was delivered, and {found} lies there",
                    runs_of(history, key, offset),
                )


def _published(history: History, tally: Tally) -> Iterator[Violation]:
    places: dict[str, list[tuple[str, int, int]]] = defaultdict(list)
    for (topic, partition), rows in history.rows.items():
        for offset, row in rows.items():
            places[row.value].append((topic, partition, offset))
    for publish in history.publishes:
        tally.count += len(publish.values)
        for number, value in enumerate(publish.values):
            found = places.get(value, [])
            where = f"publish {publish.name}"
            told = f"{stamp(publish.at)} {publish.process} publishes {value}, told {publish.outcome} at {stamp(publish.told_at)}"
            if publish.outcome == "rolled back" and found:
                yield Violation("I4", where, f"{value} was rolled back, and lies at {found}", (told,))
            elif len(found) > 1:
                yield Violation("I4", where, f"{value} was published once, and lies at {found}", (told,))
            elif publish.outcome == "returned":
                wanted = (publish.topic, *publish.places[number])
                if found != [wanted]:
                    yield Violation(
                        "I4", where, f"{value} was committed at {wanted}, and lies at {found or 'no place'}", (told,)
                    )


@law("I5", "no delivery starts, in the ack's epoch or a later one, after the ack's COMMIT has returned", "record")
def no_start_after_ack(history: History, tally: Tally) -> Iterator[Violation]:
    for key, runs in history.runs.items():
        again = replayed(history.claims[key]) if key in history.claims else set()
        for offset, ours in by_offset(runs).items():
            sure = [run for run in ours if run.told == "returned"]
            tally.count += len(sure)
            if not sure or offset in again:
                continue
            first = min(sure, key=lambda run: run.told_at)
            for run in ours:
                if run.epoch >= first.epoch and run.start_at > first.told_at + CLOCK_S:
                    yield Violation(
                        "I5", at(key, offset), "starts after its ack was told to be durable", (str(first), str(run))
                    )


@law("I6", "zombies' writes: none is applied", "audit")
def zombies(history: History, tally: Tally) -> Iterator[Violation]:
    for key, state in history.claims.items():
        for row in state.progress:
            if row.epoch != row.claim_epoch:
                yield Violation(
                    "I6",
                    str(key),
                    f"a write of epoch {row.epoch} was applied in epoch {row.claim_epoch}",
                    (describe(row),),
                )
        for ack in state.acked:
            if ack.epoch != ack.claim_epoch:
                yield Violation(
                    "I6",
                    at(key, ack.offset),
                    f"an ack of epoch {ack.epoch} was applied in epoch {ack.claim_epoch}",
                    runs_of(history, key, ack.offset),
                )
    for runs in history.runs.values():
        for run in runs:
            tally.count += run.error in REFUSALS
    frozen = sum(event["event"] == "freeze" for event in history.driver)
    tally.notes.append(f"{tally.count} refused, {frozen} processes were frozen")


@law("I7", "writes of a partition by seq have epochs that never fall, each by the holder of that epoch", "audit")
def holders(history: History, tally: Tally) -> Iterator[Violation]:
    for key, state in history.claims.items():
        owners: dict[int, str] = {}
        for owned in state.owned:
            if owned.owner is not None and owners.setdefault(owned.epoch, owned.owner) != owned.owner:
                yield Violation(
                    "I7", str(key), f"epoch {owned.epoch} had two owners, {owners[owned.epoch]} and {owned.owner}"
                )
        last = None
        for row in state.progress:
            tally.count += 1
            if last is not None and (row.epoch < last.epoch or row.seq <= last.seq):
                yield Violation(
                    "I7", str(key), f"epoch {row.epoch} wrote after epoch {last.epoch}", (describe(last), describe(row))
                )
            client = history.clients.get(owners.get(row.epoch, ""))
            words = row.application.split(" ", 2)
            # The work loop's connection carries exchanges; others (a takeover, a seek) write for good reasons of their own.
            if words[:2] == ["coordinator", "work"] and client is not None and not client.startswith(words[2]):
                yield Violation(
                    "I7", str(key), f"{words[2]} wrote in epoch {row.epoch}, which is {client}'s", (describe(row),)
                )
            last = row


@law("I8", "one live delivery per group and message within an epoch", "record")
def one_live(history: History, tally: Tally) -> Iterator[Violation]:
    for key, runs in history.runs.items():
        for offset, ours in by_offset(runs).items():
            tally.count += len(ours)
            for before, after in itertools.pairwise(ours):
                if before.epoch != after.epoch:
                    continue
                visibility_s = history.processes[before.process].facts.get("visibility_s", 30.0)
                deadline = min(before.end_at, before.start_at + visibility_s)
                # What the connection broke in the middle of was given back, and says so by no end.
                broken = before.end is None and before.told == "unknown" and before.told_at <= after.start_at
                if after.start_at < deadline - CLOCK_S and not broken and not _given_back(history, before, after):
                    yield Violation("I8", at(key, offset), "is in flight twice", (str(before), str(after)))


def _given_back(history: History, before: Run, after: Run) -> bool:
    """Was its handler's own statement ended by a fault? It raised then, without a word of ours."""
    return (
        before.end is None
        and before.process == after.process
        and any(
            event["event"] in ("restart", "shut down", "terminate", "cut", "black hole")
            and before.start_at <= event["at"] <= after.start_at
            for event in history.driver
        )
    )


@law("I9", "the window was committed before the handler started", "record", "audit")
def window_first(history: History, tally: Tally) -> Iterator[Violation]:
    for key, runs in history.runs.items():
        state = history.claims[key]
        windows = Windows(state)
        handed: dict[tuple[int, int], float] = {}
        for version in state.parked:
            if version.dispatched_epoch is not None:
                handed.setdefault((version.offset, version.dispatched_epoch), version.commit_at)
        for run in runs:
            tally.count += 1
            committed_at = min(windows.commit_at(run.epoch, run.offset), handed.get((run.offset, run.epoch), FOREVER))
            if committed_at > run.start_at + CLOCK_S:
                yield Violation(
                    "I9",
                    at(key, run.offset),
                    f"starts in epoch {run.epoch}, and its window was committed at {stamp(committed_at)}",
                    (str(run),),
                )


@law(
    "I10",
    "starts in an epoch are in offset order, the next when the one before is settled; with key order, per key",
    "record",
    "tables",
)
def order(history: History, tally: Tally) -> Iterator[Violation]:
    told = {
        value: publish.told_at
        for publish in history.publishes
        if publish.outcome == "returned"
        for value in publish.values
    }
    for key, runs in history.runs.items():
        ordering = history.reads(key.group).get("ordering")
        state = history.claims[key]
        rows = history.rows.get((key.topic, key.partition), {})
        if ordering not in ("partition", "key"):
            continue
        again = replayed(state)
        windows = Windows(state)
        lanes: dict[tuple[int, object], dict[int, list[Run]]] = defaultdict(lambda: defaultdict(list))
        for run in runs:
            lane = (run.epoch, None if ordering == "partition" else run.key)
            if run.offset not in again and (ordering == "partition" or run.key is not None):
                lanes[lane][run.offset].append(run)
        dead = {buried.offset: buried.commit_at for buried in state.buried}
        crashed = {buried.offset for buried in state.buried if buried.reason == CRASH}
        for (epoch, _), lane in lanes.items():
            latest: tuple[float, int] = (-FOREVER, -1)
            held: tuple[object, tuple[float, int]] = (None, latest)
            for offset in sorted(lane):
                ours = lane[offset]
                first = min(ours, key=lambda run: run.start_at)
                tally.count += 1
                if first.batch is None or first.batch != held[0]:
                    held = (first.batch, latest)
                until, other = held[1]
                if until > first.start_at + CLOCK_S and other not in crashed:
                    # A message that had not committed when this one was read is no earlier one.
                    seen = told.get(rows[other].value, FOREVER) if other in rows else FOREVER
                    if ordering == "partition" or seen < windows.commit_at(epoch, offset):
                        yield Violation(
                            "I10",
                            at(key, offset),
                            f"starts before {other} is settled, in epoch {epoch}",
                            (*(str(run) for run in lane[other]), str(first)),
                        )
                latest = max(latest, (_accepted_at(ours, dead.get(offset)), offset))


def _accepted_at(runs: list[Run], died_at: float | None) -> float:
    """When a message was settled as its owner sees it: an ack or rejection was said, or the failure that was its last."""
    said = min((run.end_at for run in runs if run.end in ("ack", "reject")), default=FOREVER)
    if died_at is not None:
        said = min(said, max((run.end_at for run in runs if run.end == "fail"), default=died_at))
    return said


@law(
    "I11",
    "attempts told never fall, and are at least the charged starts; starts are bounded by the budgets",
    "record",
    "tables",
)
def attempts(history: History, tally: Tally) -> Iterator[Violation]:
    for key, runs in history.runs.items():
        state = history.claims[key]
        again = replayed(state)
        # A charge that was withdrawn lowers what is told; which messages it covered is not kept.
        withdrawn = any(crash.op == "delete" for crash in state.crashed) or _withdrawn(state)
        fails: dict[int, list[tuple[float, int]]] = defaultdict(list)
        for version in state.parked:
            if version.op != "delete":
                fails[version.offset].append((version.commit_at, version.fails))
        reads = history.reads(key.group)
        for offset, ours in by_offset(runs).items():
            if offset in again:
                continue
            told = 0
            for run in ours:
                tally.count += 1
                charged = max(
                    (count for since, count in fails.get(offset, ()) if since < run.start_at - CLOCK_S), default=0
                )
                # A process that was thawed does not know what was charged after its epoch. And what failed before anybody had started it
                # is this same delivery, handed over in a list whose first messages took longer than its deadline.
                begun = any(other.start_at < run.start_at for other in ours)
                if begun and run.attempt < 1 + charged and run.epoch == max(other.epoch for other in ours):
                    yield Violation(
                        "I11",
                        at(key, offset),
                        f"is told attempt {run.attempt}, and {charged} failures are charged",
                        runs_of(history, key, offset),
                    )
                if run.attempt < told and not withdrawn:
                    yield Violation(
                        "I11",
                        at(key, offset),
                        f"is told attempt {run.attempt} after {told}",
                        runs_of(history, key, offset),
                    )
                told = max(told, run.attempt)
            budget = reads.get("max_attempts", 5)
            for epoch, count in Counter(run.epoch for run in ours if run.end == "fail").items():
                if count > budget:
                    yield Violation(
                        "I11",
                        at(key, offset),
                        f"failed {count} times in epoch {epoch}, of {budget}",
                        runs_of(history, key, offset),
                    )


def _withdrawn(state: ClaimState) -> bool:
    crashes: dict[int, int] = {}
    for version in state.parked:
        if version.op == "update" and version.crashes < crashes.get(version.offset, 0):
            return True
        crashes[version.offset] = version.crashes
    return False


@law(
    "I13",
    "no innocent: when a message died of crashes, nothing else was running beside it at the last",
    "record",
    "audit",
)
def innocents(history: History, tally: Tally) -> Iterator[Violation]:
    """Nothing else of that coordinator: consumers of one process that are read by loops of their own are coordinators each."""
    for key, state in history.claims.items():
        for buried in state.buried:
            if buried.op != "insert" or buried.reason != CRASH:
                continue
            tally.count += 1
            process = _last_charged(history, state, buried.offset)
            if process is None:
                yield Violation(
                    "I13",
                    at(key, buried.offset),
                    "died of crashes, and none of them was charged to it",
                    runs_of(history, key, buried.offset),
                )
                continue
            explicit = process.facts.get("groups", {}).get(key.group, {}).get("explicit")
            others = [
                run
                for run in process.runs
                if (run.claim, run.offset) != (key, buried.offset)
                and (run.claim.group == key.group or not explicit)
                and run.start_at < process.died_at < min(run.end_at, run.told_at)
            ]
            if others:
                yield Violation(
                    "I13",
                    at(key, buried.offset),
                    f"died of crashes, and {len(others)} others were running when {process.name} died at {stamp(process.died_at)}",
                    (*runs_of(history, key, buried.offset), *(str(run) for run in others[:5])),
                )


def _last_charged(history: History, state: ClaimState, offset: int) -> Process | None:
    """The process whose death was the last that was charged to a message."""
    charges = [
        (crash.commit_at, crash.epoch)
        for crash in state.crashed
        if crash.op == "insert" and any(lo <= offset < hi for lo, hi in crash.offsets)
    ]
    crashes = 0
    for version in state.parked:
        if version.offset == offset and version.op != "delete":
            if version.op == "update" and version.crashes > crashes and version.was_dispatched_epoch is not None:
                charges.append((version.commit_at, version.was_dispatched_epoch))
            crashes = version.crashes
    owners = {owned.epoch: owned.owner for owned in state.owned if owned.owner is not None}
    for _, epoch in sorted(charges, reverse=True):
        client = history.clients.get(owners.get(epoch) or "")
        if client in history.processes:
            return history.processes[client]
    return None


@law("I14", "a retry starts no earlier than its failure and its delay, also after a takeover", "record", "tables")
def retries_wait(history: History, tally: Tally) -> Iterator[Violation]:
    for key, state in history.claims.items():
        for version in state.parked:
            handed = version.op == "update" and version.dispatched_epoch not in (None, version.was_dispatched_epoch)
            if handed and version.next_at is not None and not _by_a_ghost(history, state, version.at):
                tally.count += 1
                if version.at < version.next_at - CLOCK_S:
                    yield Violation(
                        "I14",
                        at(key, version.offset),
                        f"was handed out at {stamp(version.at)}, and is due at {stamp(version.next_at)}",
                        runs_of(history, key, version.offset),
                    )
    for key, runs in history.runs.items():
        for offset, ours in by_offset(runs).items():
            for before, after in itertools.pairwise(ours):
                if before.epoch == after.epoch and before.end == "fail" and before.delay_s is not None:
                    tally.count += 1
                    if after.start_at < before.end_at + before.delay_s - CLOCK_S:
                        yield Violation(
                            "I14",
                            at(key, offset),
                            f"starts again before its delay of {before.delay_s} s",
                            (str(before), str(after)),
                        )


def _by_a_ghost(history: History, state: ClaimState, moment: float) -> bool:
    """Declared dead, and charged, and not replaced: what it still hands itself is due later by that charge, which it does not know."""
    owner = next((owned.owner for owned in reversed(state.owned) if owned.at <= moment), None)
    return owner is not None and history.deaths.get(owner, FOREVER) <= moment


@law("I15", "in flight, holes, windows, parked and memory stay within their limits", "record", "audit")
def limits(history: History, tally: Tally) -> Iterator[Violation]:
    for process in history.processes.values():
        yield from _in_flight(process, tally)
    holes, prefetch = history.setting("max_holes", 256), history.setting("prefetch", 500)
    parked = history.setting("max_parked", 10_000)
    for key, state in history.claims.items():
        for row in state.progress:
            tally.count += 1
            # A window that was committed at the bound may fall apart into as many ranges again.
            if len(row.done) > holes + prefetch + 1:
                yield Violation("I15", str(key), f"{len(row.done)} holes, of {holes:g}", (describe(row),))
            if row.hwm - row.committed > holes * 2 * prefetch:
                yield Violation("I15", str(key), f"a window of {row.hwm - row.committed}", (describe(row),))
        waiting = 0
        for version in state.parked:
            waiting += {"insert": 1, "delete": -1}.get(version.op, 0)
            if waiting > parked + 6 * prefetch:
                yield Violation("I15", str(key), f"{waiting} parked, of {parked:g}")
                break
    for event in history.driver:
        if event["event"] == "grown":
            yield Violation(
                "I15",
                event["what"],
                f"grew from {event['was']} to {event['now']}, at most {event['most']} was expected",
            )


def _in_flight(process: Process, tally: Tally) -> Iterator[Violation]:
    for group, reads in process.facts.get("groups", {}).items():
        # An explicit consumer takes batches of its own size.
        most = reads["ask"] if reads["explicit"] else reads["concurrency"] * reads["batch_size"]
        steps = []
        for run in process.runs:
            if run.claim.group == group:
                # What broke has no end in the record: it counts for as long as it is likely to have run.
                end = min(run.end_at, run.told_at, run.start_at + 0.001 if run.end is None else FOREVER)
                steps += [(run.start_at, 1), (end, -1)]
        running = 0
        for _, step in sorted(steps):
            running += step
            tally.count += 1
            if running > most:
                yield Violation("I15", f"{process.name}, group {group}", f"{running} deliveries at once, of {most}")
                break


@law(
    "I17", "a confirmed ack is visible to every later snapshot; an uncertain COMMIT has one outcome", "record", "tables"
)
def confirmed(history: History, tally: Tally) -> Iterator[Violation]:
    for key, state in history.claims.items():
        when = settled_at(state) if state.progress else {}
        again = replayed(state)
        for run in history.runs.get(key, ()):
            if run.told == "raised" and run.error in REFUSALS:
                yield from _refused(history, key, state, run)
            if run.told != "returned" or run.offset in again:
                continue
            tally.count += 1
            if not state.settled(run.offset) or run.offset in state.retries:
                yield Violation(
                    "I17",
                    at(key, run.offset),
                    "its ack was told to be durable, and the tables do not have it",
                    (str(run),),
                )
            elif when and when.get(run.offset, FOREVER) > run.told_at + CLOCK_S:
                yield Violation(
                    "I17",
                    at(key, run.offset),
                    f"its ack was told to be durable, and its COMMIT was at {stamp(when.get(run.offset, FOREVER))}",
                    (str(run),),
                )


def _refused(history: History, key: ClaimKey, state: ClaimState, run: Run) -> Iterator[Violation]:
    """A refused ack of a transactional handler has left nothing: somebody else has acked, or nobody."""
    if not history.reads(key.group).get("transactional") or not history.audited:
        return
    others = [
        other for other in history.runs[key] if other.offset == run.offset and other is not run and other.end == "ack"
    ]
    if (
        any(ack.offset == run.offset for ack in state.acked)
        and not others
        and run.offset not in {b.offset for b in state.buried}
    ):
        yield Violation("I17", at(key, run.offset), "its ack was refused, and it is there", (str(run),))


@law(
    "L1",
    "after faults: all settled, nothing unowned for longer than a lease and a poll, balanced, then no moves",
    "tables",
    "rest",
)
def rest(history: History, tally: Tally) -> Iterator[Violation]:
    loads: dict[str, Counter[str]] = defaultdict(Counter)
    for key, state in history.claims.items():
        tally.count += 1
        if state.committed != state.high + 1 or state.retries:
            yield Violation(
                "L1", str(key), f"settled to {state.committed} of {state.high + 1}, {len(state.retries)} parked"
            )
        if state.acks or state.crashes:
            yield Violation(
                "L1", str(key), f"keeps {len(state.acks)} acks and {len(state.crashes)} crashes rows at rest"
            )
        members = history.members.get(key.group, set())
        if state.owner not in members:
            yield Violation("L1", str(key), f"owned by {state.owner}, which is no member alive of {sorted(members)}")
        else:
            loads[key.group][state.owner] += 1
        yield from _unowned(history, key, state)
        yield from _moves(history, key, state)
    for group, members in history.members.items():
        counts = [loads[group][member] for member in members]
        if loads[group] and max(counts) - min(counts) > 1:
            yield Violation("L1", f"group {group}", f"is spread as {dict(loads[group])} over {len(members)} members")


def _unowned(history: History, key: ClaimKey, state: ClaimState) -> Iterator[Violation]:
    calm = history.moment("calm")
    if calm is None or not state.owned:
        return
    bound_s = history.setting("lease_s", 10.0) + history.setting("poll_s", 2.0) + 1.0
    free_since: float | None = state.owned[0].at
    for owned, after in zip(state.owned, [*state.owned[1:], None], strict=True):
        if owned.owner is None:
            free_since = owned.at if free_since is None else free_since
        else:
            died = history.deaths.get(owned.owner, FOREVER)
            free_since = died if died < FOREVER else None
        until = after.at if after is not None else history.moment("end") or calm
        if free_since is not None and until - max(free_since, calm) > bound_s:
            yield Violation(
                "L1",
                str(key),
                f"owned by nobody from {stamp(max(free_since, calm))} to {stamp(until)}, longer than {bound_s:g} s",
            )
        if owned.owner is not None:
            free_since = None


def _moves(history: History, key: ClaimKey, state: ClaimState) -> Iterator[Violation]:
    balanced, end = history.moment("balanced"), history.moment("end") or FOREVER
    late = [owned for owned in state.owned if balanced is not None and balanced < owned.at <= end]
    if late:
        yield Violation(
            "L1",
            str(key),
            f"moved to {late[0].owner} at {stamp(late[0].at)}, after the balance at {stamp(balanced or 0)}",
        )
