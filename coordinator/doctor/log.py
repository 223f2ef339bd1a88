"""Sequences, segments, publishers that stay open, and what somebody should have done by now."""

from datetime import datetime

from coordinator.doctor.report import Limits, Notes, age_s, duration
from coordinator.protocol.doctor import PartitionFacts, Publisher, SegmentProblem, Upkeep


def sequences(notes: Notes, found: list[PartitionFacts]) -> None:
    """A sequence is never behind its messages, counts by ones, and caches nothing."""
    for partition in found:
        subject = f"{partition.topic}/{partition.partition}"
        if partition.high < partition.last_message:
            notes.error(
                subject,
                f"the sequence {partition.sequence} is at {partition.high}, but there is a message {partition.last_message}: "
                "publishing fails, or writes where readers have been",
                "stop the publishers, then: coordinator db repair-sequences",
            )
        if partition.cache != 1 or partition.increment != 1:
            notes.error(
                subject,
                f"the sequence {partition.sequence} has CACHE {partition.cache} and INCREMENT BY {partition.increment}: a "
                "session then publishes below what readers have seen, and they never look there again",
                f"alter sequence {partition.sequence} increment by 1 cache 1",
            )


def segments(notes: Notes, found: list[SegmentProblem]) -> None:
    """The current segment exists, and no detach was left half done."""
    for problem in found:
        if problem.problem == "missing":
            notes.error(
                problem.topic,
                f"the current segment is {problem.segment} by the sequence {problem.subject}, but there is no such segment: "
                "publishing fails",
                "coordinator db repair-sequences",
            )
        else:
            parent = problem.subject.rpartition("_s")[0]
            notes.error(
                problem.topic,
                f"the segment {problem.subject} was to be dropped, and its DETACH CONCURRENTLY was cut off; no other segment "
                "of the topic can be dropped before it is finished",
                f"alter table {parent} detach partition {problem.subject} finalize; maintenance does it, too. It waits for "
                "every older snapshot: see the check snapshots",
            )


def publishers(notes: Notes, found: list[Publisher], now: datetime, limits: Limits) -> None:
    """Nobody publishes and then leaves the transaction open."""
    opened: dict[tuple[int | None, str | None, datetime | None], list[str]] = {}
    for publisher in found:
        subject = publisher.topic if publisher.partition < 0 else f"{publisher.topic}/{publisher.partition}"
        opened.setdefault((publisher.pid, publisher.application_name, publisher.since), []).append(subject)
    for (pid, name, since), subjects in opened.items():
        age = age_s(since, now)
        if age <= limits.max_publisher_age_s:
            continue
        whose = f"{name or 'a session'} (pid {pid})" if pid is not None else "a prepared transaction"
        notes.warning(
            ", ".join(sorted(set(subjects))),
            f"{whose} has published there and is open for {duration(age)}; readers with ordering=partition wait at its "
            "offsets, others stop when they have read past many of them, and no segment is dropped",
            f"end it: select pg_terminate_backend({pid})"
            if pid is not None
            else "commit or roll it back: see pg_prepared_xacts",
        )


def upkeep(notes: Notes, found: list[Upkeep], now: datetime, limits: Limits) -> None:
    """Somebody does the maintenance."""
    run_it = "run consumers, coordinator serve or coordinator maintain; one process is enough"
    for item in found:
        late = age_s(item.since, now)
        if item.problem == "paused":
            notes.warning(
                item.subject,
                f"{item.found} scheduled messages wait, and the topic has refused them {item.bound} times: {item.detail}",
                "a backlog has to shrink, or max_backlog to grow",
            )
            continue
        if item.problem == "failing":
            notes.error(
                f"task {item.subject}",
                f"maintenance has not got it done for {duration(late)}: {item.detail}",
                "mend what the error names; it is tried again by itself",
            )
        elif item.problem == "idle" and late > limits.max_maintenance_age_s:
            notes.warning(
                "maintenance", f"nobody has done any for {duration(late)}: no segment is rotated or dropped", run_it
            )
        if late <= limits.max_late_s:
            continue
        if item.problem == "overdue":
            notes.error(
                item.subject, f"{item.found} scheduled messages are due, the first for {duration(late)}", run_it
            )
        elif item.problem == "expired":
            notes.warning(item.subject, f"{item.found} dedup keys have expired, the first {duration(late)} ago", run_it)
        elif item.problem == "unreaped":
            notes.warning(
                item.subject,
                f"its lease is over for {duration(late)}, it owns {item.found} partitions, and nobody has declared it dead",
                "run `coordinator maintain`, or a consumer; if one runs, see view offsets for who holds its claims",
            )
