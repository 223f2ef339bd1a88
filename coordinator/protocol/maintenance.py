"""The functions of sql/functions/maintenance as data."""

from typing import NamedTuple

from coordinator.protocol.statement import Flow, Statement, call


class Maintained(NamedTuple):
    """What one round of maintenance did; `next_s`: in how many seconds to come again."""

    moved: int
    failed: int
    expired: int
    next_s: float


def maintain_publishing(limit: int) -> Statement[Maintained]:
    """Move what is due and delete expired dedup keys, up to `limit` of each, unless another process is at it."""
    return Statement(
        "maintain_publishing",
        "select m.moved, m.failed, m.expired, m.next_s from coordinator.maintain_publishing(%s) m",
        (limit,),
        lambda rows: Maintained(*rows[0]),
    )


class Rotated(NamedTuple):
    """Segments of which the table was added, that were opened, and that could be neither at this time."""

    added: int
    opened: int
    failed: int


class Skipped(NamedTuple):
    """What retention has made a group pass; `offsets` is a multirange as text."""

    topic: str
    group: str
    partition: int
    offsets: str
    reason: str


class Retired(NamedTuple):
    """A segment that is read no more."""

    topic: str
    segment: int


class Dropped(NamedTuple):
    """A retired segment whose table is gone; or is not, because of those in `blocked_by`."""

    topic: str
    segment: int
    dropped: bool
    blocked_by: str | None


class Swept(NamedTuple):
    """What was too old, and groups without members that keep expired segments, as "group topic"."""

    dead_letters: int
    progress: int
    coordinators: int
    deleted_groups: tuple[str, ...]
    pinning: tuple[str, ...]


# The most claims that one statement moves.
SKIP_LIMIT = 20


def rotate_due() -> Statement[Rotated]:
    """Add segments, or open those that were added before; see `rotation`."""
    return Statement(
        "rotate_due",
        "select r.added, r.opened, r.failed from coordinator.rotate_due() r",
        (),
        lambda rows: Rotated(*rows[0]),
    )


def skip_expired() -> Statement[list[Skipped]]:
    """Make groups pass what is no longer kept for them, up to SKIP_LIMIT claims."""
    return Statement(
        "skip_expired",
        'select s.topic, s."group", s.partition, s.offsets, s.reason from coordinator.skip_expired(%s) s',
        (SKIP_LIMIT,),
        lambda rows: [Skipped(*row) for row in rows],
    )


def retire_segments() -> Statement[list[Retired]]:
    """Take segments out of reading that nobody needs."""
    return Statement(
        "retire_segments",
        "select r.topic, r.segment from coordinator.retire_segments() r",
        (),
        lambda rows: [Retired(*row) for row in rows],
    )


def drop_retired() -> Statement[list[Dropped]]:
    """Drop the table of one retired segment, and tell which can't be."""
    return Statement(
        "drop_retired",
        "select d.topic, d.segment, d.dropped, d.blocked_by from coordinator.drop_retired() d",
        (),
        lambda rows: [Dropped(*row) for row in rows],
    )


def sweep() -> Statement[Swept]:
    """Delete what is too old, once a minute whoever calls."""
    return Statement(
        "sweep",
        "select s.dead_letters, s.progress, s.coordinators, s.deleted_groups, s.pinning from coordinator.sweep() s",
        (),
        lambda rows: Swept(rows[0][0], rows[0][1], rows[0][2], tuple(rows[0][3]), tuple(rows[0][4])),
    )


def detach_command(topic: str, segment: int) -> Statement[str | None]:
    """The command that detaches a retired segment; None where there is nothing to detach."""
    return Statement(
        "detach_command", "select coordinator.detach_command(%s, %s)", (topic, segment), lambda rows: rows[0][0]
    )


def fail_task(task: str, error: str) -> Statement[None]:
    """Write down that a task has failed, for those who look later."""
    return Statement("fail_task", "select coordinator.fail_task(%s, %s)", (task, error), lambda _: None)


def rotation() -> Flow[Rotated]:
    """Rotate what is due, in two transactions."""
    first = yield from call(rotate_due())
    if not first.added:
        return first
    second = yield from call(rotate_due())
    return Rotated(first.added, first.opened + second.opened, first.failed + second.failed)


def skipping() -> Flow[list[Skipped]]:
    """Skip until nothing is left to skip."""
    skipped: list[Skipped] = []
    while some := (yield from call(skip_expired())):
        skipped += some
    return skipped


def retirement() -> Flow[list[Retired]]:
    """Retire."""
    return (yield from call(retire_segments()))


def dropping() -> Flow[list[Dropped]]:
    """Drop one after the other; the last answer names those that are blocked."""
    dropped: list[Dropped] = []
    while True:
        some = yield from call(drop_retired())
        dropped += [one for one in some if one.dropped]
        if not any(one.dropped for one in some):
            return dropped + some


def sweeping() -> Flow[Swept]:
    """Sweep."""
    return (yield from call(sweep()))
