"""What doctor says."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be.

    Attributes:
        check: Which check found it.
        severity: error: messages are lost, held up or refused, or soon will be; warning: it gets slower or larger.
        subject: What it is about, such as "orders/3".
        found: What is so, with numbers.
        advice: What to do.
    """

    check: str
    severity: Severity
    subject: str
    found: str
    advice: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """What could not be looked at, and why."""

    check: str
    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """All that was looked at."""

    checked: tuple[str, ...]
    findings: tuple[Finding, ...]
    skipped: tuple[Skipped, ...]

    @property
    def ok(self) -> bool:
        return not self.findings


@dataclass(frozen=True, slots=True)
class Limits:
    """From where on something is a finding; seconds, bytes and counts as the names say.

    Attributes:
        max_snapshot_age_s: How old the oldest snapshot may be.
        max_snapshot_age_xids: The same for standbys and replication slots, which do not say since when, in transactions.
        max_publisher_age_s: How long a transaction that has published may stay open.
        max_idle_s: How long a group may have unsettled messages and nobody to read them.
        max_stuck_s: How long an owner with a message in hand may settle nothing, or a key may be blocked.
        max_late_s: How late scheduled messages, expired dedup keys and dead processes may be dealt with.
        max_maintenance_age_s: How long ago the last task of maintenance may have gone well.
        max_clock_skew_s: Between this machine and the database, beyond what the round trip explains.
        max_notify_s: For a notification to come round.
        max_dead_rows: In a table, however seldom autovacuum should come.
        max_connections_used: Of all that the server takes, as a fraction.
        max_dead_letters_used: Of a group's bound, as a fraction.
    """

    max_snapshot_age_s: float = 300
    max_snapshot_age_xids: int = 1_000_000
    max_publisher_age_s: float = 60
    max_idle_s: float = 600
    max_stuck_s: float = 300
    max_late_s: float = 60
    max_maintenance_age_s: float = 3600
    max_clock_skew_s: float = 2
    max_notify_s: float = 1
    max_dead_rows: int = 20_000
    max_connections_used: float = 0.85
    max_dead_letters_used: float = 0.9


@dataclass(slots=True)
class Notes:
    """What one check has to say; it begins empty."""

    check: str
    findings: list[Finding] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)

    def error(self, subject: str, found: str, advice: str) -> None:
        self.findings.append(Finding(self.check, "error", subject, found, advice))

    def warning(self, subject: str, found: str, advice: str) -> None:
        self.findings.append(Finding(self.check, "warning", subject, found, advice))

    def skip(self, reason: str) -> None:
        self.skipped.append(Skipped(self.check, reason))


def age_s(since: datetime | None, now: datetime) -> float:
    """Return how long ago that was; endless for what has no known beginning."""
    return float("inf") if since is None else (now - since).total_seconds()


def duration(seconds: float) -> str:
    """Return `3 d 4 h`, `12 min`, `5 s`, with the two largest units that say something."""
    if seconds == float("inf"):
        return "an unknown time"
    left = int(max(seconds, 0))
    parts = []
    for unit, length_s in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, left = divmod(left, length_s)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2]) or "0 s"


def listed(names: Sequence[str], most: int = 5) -> str:
    """Return the first few of many."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
